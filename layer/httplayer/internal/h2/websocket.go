package h2

import (
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // required by RFC 6455
	"encoding/base64"
	"net/http"
)

// upgrade makes a WebSocket over HTTP/2 (an extended CONNECT, RFC 8441) look like one over HTTP/1.1: a
// GET with Upgrade and a random key. The handler so need not know the difference. upgrade stores the
// Sec-WebSocket-Accept that the response must contain in s.accept.
func (s *serverStream) upgrade() {
	r := &s.req
	var nonce [16]byte
	_, _ = rand.Read(nonce[:])                                            // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])                    // the client sends no key in HTTP/2
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // required by RFC 6455
	s.accept = base64.StdEncoding.EncodeToString(sum[:])
	r.Method = http.MethodGet
	delete(r.Header, "Content-Length")
	r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	r.Header["Sec-Websocket-Key"] = []string{key}
}

// upgraded returns the response to send for rsp, a response to a WebSocket. A 101 becomes 200. A 101
// without the correct Sec-WebSocket-Accept, and any 2xx, becomes 502, because the client would take
// a 2xx as a WebSocket.
func (s *serverStream) upgraded(rsp *http.Response) *http.Response {
	response := *rsp
	switch {
	case rsp.StatusCode == http.StatusSwitchingProtocols && rsp.Header.Get("Sec-WebSocket-Accept") == s.accept:
		response.StatusCode, response.Header = http.StatusOK, rsp.Header.Clone()
		delete(response.Header, "Sec-Websocket-Accept")
	case rsp.StatusCode < http.StatusMultipleChoices:
		_ = rsp.Body.Close()
		return &http.Response{StatusCode: http.StatusBadGateway, Body: http.NoBody}
	}
	// With any other status the endpoint refuses the WebSocket, and the client gets that status.
	return &response
}
