"""Screenshots as small grey pictures: a PNG read, averaged over blocks, written, and two compared. Fonts differ between machines, so that single
pixels say nothing; where boxes, tables, charts and dark areas lie does."""
import pathlib, struct, zlib

WIDTH, HEIGHT = 120, 90


def read_png(data):
    """(width, height, bytes a pixel, rows of bytes) of 8 bits a channel, not interlaced."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body = 8, b""
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        chunk = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", chunk)
            assert depth == 8 and color in (0, 2, 6) and not interlaced
        elif kind == b"IDAT":
            body += chunk
        at += 12 + length
    channels = {0: 1, 2: 3, 6: 4}[color]
    raw, stride, rows, before = zlib.decompress(body), width * channels, [], bytearray(width * channels)
    for y in range(height):
        how, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        if how == 2:
            row = bytearray((a + b) & 255 for a, b in zip(row, before))
        elif how:
            for i in range(stride):
                left = row[i - channels] if i >= channels else 0
                corner = before[i - channels] if i >= channels else 0
                if how == 1:
                    row[i] = (row[i] + left) & 255
                elif how == 3:
                    row[i] = (row[i] + (left + before[i]) // 2) & 255
                else:
                    guess = left + before[i] - corner
                    distances = [(abs(guess - left), 0, left), (abs(guess - before[i]), 1, before[i]), (abs(guess - corner), 2, corner)]
                    row[i] = (row[i] + min(distances)[2]) & 255
        rows.append(row)
        before = row
    return width, height, channels, rows


def small(data):
    """HEIGHT rows of WIDTH grey values, each the mean of a block."""
    width, height, channels, rows = read_png(data)
    grey = [row if channels == 1 else [sum(row[i:i + 3]) // 3 for i in range(0, len(row), channels)] for row in rows]
    out = []
    for y in range(HEIGHT):
        block = grey[y * height // HEIGHT:(y + 1) * height // HEIGHT]
        out.append([sum(sum(row[x * width // WIDTH:(x + 1) * width // WIDTH]) for row in block) //
                    (len(block) * ((x + 1) * width // WIDTH - x * width // WIDTH)) for x in range(WIDTH)])
    return out


def write(path, picture):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    raw = b"".join(b"\0" + bytes(row) for row in picture)
    pathlib.Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", len(picture[0]), len(picture), 8, 0, 0, 0, 0)) +
                                   chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def read(path):
    return [list(row) for row in read_png(pathlib.Path(path).read_bytes())[3]]


def distance(a, b):
    """Share of blocks of 6 by 6 of the small picture whose mean differs by more than 10 of 255."""
    def blocks(picture):
        return [sum(sum(row[x:x + 6]) for row in picture[y:y + 6]) / 36 for y in range(0, HEIGHT, 6) for x in range(0, WIDTH, 6)]
    pairs = list(zip(blocks(a), blocks(b), strict=True))
    return sum(abs(x - y) > 10 for x, y in pairs) / len(pairs)
