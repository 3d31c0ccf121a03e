"""Reads messages with h11 for the test of package messages.

Input, repeated: a line "request" or "response METHOD", then a line with the number of
bytes, then the bytes. Output: a line of JSON for each: the list of messages, or the error.
"""
import json
import sys

import h11


def text(b):
    return bytes(b).decode("latin-1")


def fields(headers):
    out = {}
    for name, value in headers:
        out.setdefault(text(name).lower(), []).append(text(value))
    return out


def read(kind, method, data):
    messages = []
    if kind == "request":
        conn = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    else:
        conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        conn.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
        conn.send(h11.EndOfMessage())
    conn.receive_data(data)
    if kind == "response":
        conn.receive_data(b"")
    body = b""
    message = None
    while True:
        event = conn.next_event()
        if isinstance(event, h11.Request):
            message = {
                "method": text(event.method),
                "target": text(event.target),
                "fields": fields(event.headers),
            }
        elif isinstance(event, h11.Response):
            message = {
                "status": event.status_code,
                "reason": text(event.reason),
                "fields": fields(event.headers),
            }
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            message["body"] = text(body)
            message["trailers"] = fields(event.headers)
            messages.append(message)
            body, message = b"", None
            if kind == "response":
                return messages, text(conn.trailing_data[0])
            conn.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
            conn.send(h11.EndOfMessage())
            if conn.our_state is h11.MUST_CLOSE:
                return messages, text(conn.trailing_data[0])
            conn.start_next_cycle()
        elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            rest = "" if message is None else "incomplete"
            return messages, rest + text(conn.trailing_data[0])


def main():
    stdin, stdout = sys.stdin.buffer, sys.stdout
    while True:
        line = stdin.readline().split()
        if not line:
            return
        data = stdin.read(int(stdin.readline()))
        out = {}
        try:
            out["messages"], out["rest"] = read(line[0].decode(), line[-1].decode(), data)
        except Exception as error:  # of any kind: h11 does not read the message
            out["error"] = "%s: %s" % (type(error).__name__, error)
        stdout.write(json.dumps(out) + "\n")
        stdout.flush()


main()
