package h2

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // required by RFC 6455
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

var errNotSwitched = errors.New("the response to a WebSocket is not a valid 101")

// webSocket is a WebSocket over HTTP/2 (RFC 8441). Its request reaches the Exchange or Handler as
// an HTTP/1.1 upgrade. A webSocket is also the connection that a handler hijacks.
type webSocket struct {
	tunnelClient
	accept string // Sec-WebSocket-Accept that the response must have
	head   []byte // the part of the response head that a hijacker has written
	begun  bool   // the response head was sent
	once   sync.Once
	closed chan struct{}
}

// upgrade converts the extended CONNECT of s, with the protocol websocket, to a GET that requests
// an upgrade.
func (s *serverStream) upgrade() {
	r := &s.req
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // required by RFC 6455
	s.socket = &webSocket{tunnelClient: tunnelClient{s}, accept: base64.StdEncoding.EncodeToString(sum[:]), closed: make(chan struct{})}
	r.Method = http.MethodGet
	delete(r.Header, "Content-Length")
	r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	r.Header["Sec-Websocket-Key"] = []string{key}
}

// translate returns the status and headers to send for a response to a WebSocket. A 101 becomes
// 200. A 101 without the correct Sec-WebSocket-Accept, and any 2xx, becomes 502, because the
// client would take a 2xx as a WebSocket.
func (w *webSocket) translate(status int, header http.Header) (int, http.Header) {
	switch {
	case status == http.StatusSwitchingProtocols && header.Get("Sec-WebSocket-Accept") == w.accept:
		header = header.Clone()
		delete(header, "Sec-Websocket-Accept")
		return http.StatusOK, header
	case status < http.StatusMultipleChoices:
		w.c.server.cfg.Log.Debug("refused upgrade to WebSocket", "status", status, "error", errNotSwitched)
		return http.StatusBadGateway, nil
	}
	return status, header
}

// Write sends p. Before the response has started, it collects the HTTP/1.1 head that a hijacker
// writes, and sends it as the headers of the stream. It fails if the response is not a valid 101.
func (w *webSocket) Write(p []byte) (int, error) {
	if w.begun {
		return w.tunnelClient.Write(p)
	}
	w.head = append(w.head, p...)
	head, rest, ok := bytes.Cut(w.head, []byte("\r\n\r\n"))
	if !ok && len(w.head) <= w.c.maxHeader {
		return len(p), nil
	}
	rsp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(w.head[:min(len(head)+4, len(w.head))])), &w.req)
	if err != nil {
		return 0, err
	}
	status, header := w.translate(rsp.StatusCode, rsp.Header)
	if err := w.start(status, header, -1, status != http.StatusOK, nil); err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		return 0, errNotSwitched
	}
	w.begun, w.head = true, nil
	if len(rest) > 0 {
		_, err = w.tunnelClient.Write(rest)
	}
	return len(p), err
}

// Close resets the stream, unless CloseWrite was called before.
func (w *webSocket) Close() error {
	w.once.Do(func() {
		w.c.mu.Lock()
		ended := w.sentEnd
		w.c.mu.Unlock()
		if !ended {
			w.reset(message.CodeCancel, net.ErrClosed)
		}
		close(w.closed)
	})
	return nil
}

// wait returns when the hijacker has closed the connection, or the stream was reset.
func (w *webSocket) wait() {
	select {
	case <-w.closed:
	case <-w.ctx.Done():
	}
}

func (w *webSocket) LocalAddr() net.Addr  { return w.c.nc.LocalAddr() }
func (w *webSocket) RemoteAddr() net.Addr { return w.c.nc.RemoteAddr() }

func (w *webSocket) SetDeadline(t time.Time) error {
	return errors.Join(w.SetReadDeadline(t), w.SetWriteDeadline(t))
}
