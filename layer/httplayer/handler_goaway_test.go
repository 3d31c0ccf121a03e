package httplayer

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
)

// A client that cancels a stream keeps its connection and the other streams. A GOAWAY would
// make it reconnect for every canceled call.
func TestHandlerKeepsConnectionOnCancel(t *testing.T) {
	asked, gone := make(chan struct{}, 1), make(chan struct{})
	h := Handler(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		if r.Header.Get("Wait") == "" {
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}
		asked <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}))
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Wait") != "" {
			defer func() { gone <- struct{}{} }() // writing to the canceled stream panics
		}
		h.ServeHTTP(w, r)
	}))
	conn, done := callOn(t, t.Context(), s)
	c := newFramerClient(t, conn)
	c.open(1, true, "wait", "1")
	<-asked
	_ = c.WriteRSTStream(1, xhttp2.ErrCodeCancel)
	<-gone
	c.open(3, true)
	seen := c.until(is("end 3"))
	_ = c.WritePing(false, [8]byte{1}) // behind a GOAWAY, if there were one
	seen = append(seen, c.until(is("ping"))...)
	assert.NotContains(t, kindsOf(seen), "goaway")
	conn.Close()
	<-done
}
