package httplayer

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// serveTunnel hijacks the connection of the client and sends the headers of rsp. It then
// copies bytes between the client and the body of rsp, which is the connection to the
// endpoint.
func serveTunnel(w http.ResponseWriter, r *http.Request, rsp *http.Response) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer conn.Close()
	endpoint, ok := rsp.Body.(io.ReadWriteCloser)
	if !ok {
		return // an ErrorHandler has set this status
	}
	if upgrade := rsp.Header["Upgrade"]; len(upgrade) > 0 {
		rsp.Header["Connection"] = []string{"Upgrade"}
	}
	if writeHead(buffered.Writer, rsp) == nil {
		first, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
		_ = message.Tunnel(r.Context(), &message.AheadConn{Conn: conn, Ahead: first}, endpoint)
	}
}

// writeHead writes the status line and the headers of rsp, which starts a tunnel. It omits
// the headers about the length of the body, because a tunnel has no body.
func writeHead(w *bufio.Writer, rsp *http.Response) error {
	_, _ = fmt.Fprintf(w, "HTTP/1.1 %s\r\n", message.StatusLines[rsp.StatusCode])
	_ = rsp.Header.WriteSubset(w, map[string]bool{"Content-Length": true, "Transfer-Encoding": true})
	_, _ = io.WriteString(w, "\r\n")
	return w.Flush() // returns an earlier write error, too
}

// upgradeError returns an error if r requests an upgrade to an invalid protocol name.
func upgradeError(r *http.Request) error {
	if strings.ContainsFunc(message.Upgrade(r.Header), func(c rune) bool { return c < ' ' || c > '~' }) {
		return &StatusError{Code: http.StatusBadRequest, Reason: "the Upgrade header must be printable ASCII", Close: r.ProtoMajor == 1}
	}
	return nil
}
