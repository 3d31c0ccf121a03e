package httplayer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// serveTunnel hijacks the connection of the client, sends the headers of rsp, and copies
// bytes between the client and the body of rsp, which is the connection to the endpoint.
func serveTunnel(w http.ResponseWriter, r *http.Request, rsp *http.Response) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer conn.Close()
	endpoint, ok := rsp.Body.(io.ReadWriteCloser)
	if !ok {
		return
	}
	if upgrade := rsp.Header["Upgrade"]; len(upgrade) > 0 {
		rsp.Header["Connection"] = []string{"Upgrade"}
	}
	if writeHead(buffered.Writer, rsp) == nil {
		splice(r.Context(), ahead(conn, buffered.Reader), endpoint)
	}
}

// splice copies bytes between client and endpoint, until both directions have ended, one
// has failed, or ctx ends. It then closes both connections.
func splice(ctx context.Context, client net.Conn, endpoint io.ReadWriteCloser) {
	cut := func() {
		_ = client.Close()
		_ = endpoint.Close()
	}
	defer cut()
	defer context.AfterFunc(ctx, func() { _ = panics.Contain(cut) })()
	ends := make(chan bool, 2)
	go func() { ends <- carry(endpoint, client) }()
	go func() { ends <- carry(client, endpoint) }()
	if !<-ends {
		cut() // ends the Read of the other direction
	}
	<-ends
}

// carry copies bytes from one connection to the other, and then closes the sending half of
// the connection to. It reports whether both succeeded. It recovers from panics.
func carry(to io.Writer, from io.Reader) (whole bool) {
	_ = panics.Contain(func() {
		if _, err := io.Copy(to, from); err != nil {
			return
		}
		half, ok := to.(halfCloser)
		whole = ok && half.CloseWrite() == nil
	})
	return whole
}

// ahead returns a connection that first returns the bytes that r has buffered, and then
// reads from conn.
func ahead(conn net.Conn, r *bufio.Reader) net.Conn {
	n := r.Buffered()
	if n == 0 {
		return conn
	}
	first := make([]byte, n)
	_, _ = io.ReadFull(r, first)
	return &aheadConn{Conn: conn, first: first}
}

// aheadConn is a connection that first returns the bytes in first. One goroutine at a time
// calls Read.
type aheadConn struct {
	net.Conn
	first []byte
}

func (c *aheadConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}

// CloseWrite closes the sending half of the connection. It returns an error if the
// connection cannot do this.
func (c *aheadConn) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// NetConn returns the underlying connection.
func (c *aheadConn) NetConn() net.Conn { return c.Conn }

// writeHead writes the status line and the headers of rsp, which starts a tunnel. It omits
// the headers about the length of the body, because a tunnel has no body.
func writeHead(w *bufio.Writer, rsp *http.Response) error {
	text := http.StatusText(rsp.StatusCode)
	if _, reason, ok := strings.Cut(rsp.Status, " "); ok {
		text = printable(reason)
	}
	_, _ = io.WriteString(w, "HTTP/1.1 "+statusDigits(rsp.StatusCode)+" "+text+"\r\n")
	_ = rsp.Header.WriteSubset(w, map[string]bool{"Content-Length": true, "Transfer-Encoding": true})
	_, _ = io.WriteString(w, "\r\n")
	return w.Flush() // returns an earlier write error, too
}

func statusDigits(code int) string {
	return string([]byte{'0' + byte(code/100%10), '0' + byte(code/10%10), '0' + byte(code%10)})
}

// upgrade returns the value of the Upgrade header if h requests or confirms an upgrade, and
// "" otherwise.
func upgrade(h http.Header) string {
	if len(h["Upgrade"]) == 0 || !message.Listed(h["Connection"], "Upgrade") {
		return ""
	}
	return h.Get("Upgrade")
}

// upgradeError returns an error if r requests an upgrade to an invalid protocol name.
func upgradeError(r *http.Request) error {
	if strings.ContainsFunc(upgrade(r.Header), func(c rune) bool { return c < ' ' || c > '~' }) {
		return &StatusError{Code: http.StatusBadRequest, Reason: "the Upgrade header must be printable ASCII", Close: r.ProtoMajor == 1}
	}
	return nil
}

// switchError returns an error if rsp, a 101 response, does not match the upgrade that req
// requests.
func switchError(req *http.Request, rsp *http.Response) error {
	asked, got := upgrade(req.Header), upgrade(rsp.Header)
	if got == "" || !strings.EqualFold(asked, got) {
		return &peerError{fmt.Errorf("httplayer: the endpoint switched to %q where %q was asked for", got, asked)}
	}
	if _, ok := rsp.Body.(io.ReadWriteCloser); !ok {
		return &peerError{errors.New("httplayer: the endpoint switched protocols and has no connection")}
	}
	return nil
}
