package sidecar_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2" //nolint:depguard // its Framer: net/http exports none

	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/internal/conntest"
)

// A request waits while connections are refused, and then succeeds.
func TestA26EndpointListensLate(t *testing.T) {
	spoken(t, func(t *testing.T, ask func(asking, string) (int, string)) {
		ctl, tn := balanced(t, func(c *sidecar.Config) { c.Outbound.HTTPQueue.FailFast = soon })
		up := freeAddr(t)
		answer := later(t, ask, tn.Addr)
		ctl.next(t, webName).add(t, endpointAt(up))
		control := h1Client(t, tn.Admin)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			_, tree := get(c, control, "http://"+tn.Admin+"/stack")
			assert.Contains(c, tree, "connection refused")
		}, soon, tick)
		l, err := net.Listen("tcp", up)
		require.NoError(t, err)
		srv := &http.Server{
			Protocols: new(http.Protocols),
			Handler:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, "late") }),
		}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		t.Cleanup(func() {
			srv.Close()
			<-served
		})
		require.Equal(t, "OK late", <-answer)
	})
}

// resetting is an application that resets every HTTP/2 request.
func resetting(t testing.TB, code http2.ErrCode) (addr string) {
	t.Helper()
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		in := bufio.NewReader(conn)
		if _, err := io.ReadFull(in, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(conn, in)
		if f.WriteSettings() != nil {
			return
		}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				err = f.WriteRSTStream(frame.StreamID, code)
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					err = f.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !frame.IsAck() {
					err = f.WritePing(true, frame.Data)
				}
			}
			if err != nil {
				return
			}
		}
	})
}

// A reset reaches the client with its code, through one or two proxies.
func TestA28ResetCode(t *testing.T) {
	up := resetting(t, http2.ErrCodeEnhanceYourCalm)
	two := newMesh(t, up, speaksH2)
	one := newTestProxy(t, two.ctl.addr, func(c *sidecar.Config) { c.Outbound.Origin = fixed(up) })
	for name, proxy := range map[string]string{"one": one.Addr, "two": two.a.Addr} {
		t.Run(name, func(t *testing.T) {
			_, err := h2Client(t, proxy).Get("http://web.example/")
			require.ErrorContains(t, err, "ENHANCE_YOUR_CALM")
		})
	}
}
