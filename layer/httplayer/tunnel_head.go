package httplayer

import (
	"bufio"
	"io"
	"net/http"
	"strings"
)

// writeHead writes the head of the response that a tunnel begins with: without
// a length, since it has no body.
func writeHead(w *bufio.Writer, rsp *http.Response) error {
	text := http.StatusText(rsp.StatusCode)
	if _, said, ok := strings.Cut(rsp.Status, " "); ok {
		text = printable(said)
	}
	_, _ = io.WriteString(w, "HTTP/1.1 "+statusDigits(rsp.StatusCode)+" "+text+"\r\n")
	_ = rsp.Header.WriteSubset(w, map[string]bool{"Content-Length": true, "Transfer-Encoding": true})
	_, _ = io.WriteString(w, "\r\n")
	return w.Flush() // which says what went wrong before
}

func statusDigits(code int) string {
	return string([]byte{'0' + byte(code/100%10), '0' + byte(code/10%10), '0' + byte(code%10)})
}

// removeHopByHop drops what is said to the next hop only, but for what a proxy
// asks of its clients.
func removeHopByHop(h http.Header) {
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range [...]string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	} {
		delete(h, name)
	}
}
