"""The floor: copies every file of a folder with O_DIRECT, one thread reading and one writing over two 8 MiB buffers, and fsyncs.
A tool that moves the same bytes once can reach this and no more. usage: floor_copy.py SRC DST"""
import mmap
import os
import queue
import sys
import threading
import time

BLOCK = 8 << 20
SECTOR = 4096


def copy_file(source, target):
    reading = os.open(source, os.O_RDONLY | os.O_DIRECT)
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o644)
    size = os.fstat(reading).st_size
    free, filled = queue.Queue(), queue.Queue()
    for _ in range(2):
        free.put(mmap.mmap(-1, BLOCK))

    def read_all():
        offset = 0
        while offset < size:
            buffer = free.get()
            got = os.preadv(reading, [buffer], offset)
            filled.put((buffer, offset, got))
            offset += got
        filled.put(None)

    reader = threading.Thread(target=read_all)
    reader.start()
    while (item := filled.get()) is not None:
        buffer, offset, got = item
        os.pwritev(writing, [memoryview(buffer)[:-(-got // SECTOR) * SECTOR]], offset)
        free.put(buffer)
    reader.join()
    os.ftruncate(writing, size)
    os.fsync(writing)
    os.close(writing)
    os.close(reading)
    return size


if __name__ == "__main__":
    source, target = sys.argv[1:]
    os.makedirs(target)
    start, total = time.perf_counter(), 0
    for name in sorted(os.listdir(source)):
        total += copy_file(os.path.join(source, name), os.path.join(target, name))
    print(f"seconds {time.perf_counter() - start:.3f} bytes {total}")
