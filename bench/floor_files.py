"""The floor of what several processes write or read at once: files of equal size, one a process, in 8 MiB blocks, with O_DIRECT where
the file system has it, durable. usage: floor_files.py write|read DIR PROCESSES BYTES   (BYTES of all together)"""
import mmap
import multiprocessing
import os
import sys
import time

BLOCK = 8 << 20


def opened(path, flags):
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        return os.open(path, flags, 0o600)


def write(path, blocks, barrier):
    buffer = mmap.mmap(-1, BLOCK)
    buffer.write(b"\1" * BLOCK)
    barrier.wait()
    fd = opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for _ in range(blocks):
        os.write(fd, buffer)
    os.fsync(fd)
    os.close(fd)
    barrier.wait()


def read(path, blocks, barrier):
    buffer = mmap.mmap(-1, BLOCK)
    buffer.write(b"\1" * BLOCK)
    barrier.wait()
    fd = opened(path, os.O_RDONLY)
    for block in range(blocks):
        os.preadv(fd, [buffer], block * BLOCK)
    os.close(fd)
    barrier.wait()


def main(verb, folder, processes, size):
    os.makedirs(folder, exist_ok=True)
    blocks = max(1, -(-size // processes // BLOCK))
    barrier = multiprocessing.Barrier(processes + 1)
    work = {"write": write, "read": read}[verb]
    children = [multiprocessing.Process(target=work, args=(os.path.join(folder, f"floor_{p}"), blocks, barrier)) for p in range(processes)]
    for child in children:
        child.start()
    barrier.wait()
    start = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - start
    for child in children:
        child.join()
    # Rounded up to whole blocks: the time of the bytes asked for.
    print(f"seconds {seconds * size / (blocks * processes * BLOCK):.5f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
