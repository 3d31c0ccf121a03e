package sidecar_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/internal/conntest"
)

// mllpServer serves HL7 MLLP: it acknowledges each message, which is enclosed by VT and FS CR.
func mllpServer(t *testing.T) (addr string) {
	t.Helper()
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		var message bytes.Buffer
		buf := make([]byte, 1024)
		for {
			n, err := conn.Read(buf)
			message.Write(buf[:n])
			if text := message.String(); strings.HasPrefix(text, "\v") && strings.HasSuffix(text, "\x1c\r") {
				say(conn, "\vMSA|AA|"+strings.Trim(text, "\v\x1c\r")+"\r\x1c\r")
				message.Reset()
			}
			if err != nil {
				return
			}
		}
	})
}

// echoServer sends greeting, and echoes what it receives.
func echoServer(t *testing.T, greeting string) (addr string) {
	t.Helper()
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		say(conn, greeting)
		_, _ = io.Copy(conn, conn)
	})
}

// Protocols that are not HTTP work through the proxy in both directions. Bytes that do not tell the
// protocol are forwarded after the timeout.
func TestOpaqueProtocols(t *testing.T) {
	t.Parallel()
	m := newAuthority(t, anyClient)
	for name, tt := range map[string]struct {
		app   string
		says  string
		hears string
		ends  bool // the client half-closes the connection after its bytes
		waits bool // detection ends with the timeout
	}{
		"MLLP":                     {mllpServer(t), "\vMSH|^~\\&|LAB|\rPID|1\r\x1c\r", "\vMSA|AA|MSH|^~\\&|LAB|\rPID|1\r\x1c\r", false, false},
		"text with CR":             {echoServer(t, ""), "show version\r", "show version\r", false, false},
		"Redis":                    {echoServer(t, ""), "PING\r\n", "PING\r\n", false, false},
		"NUL":                      {echoServer(t, ""), "\x00", "\x00", false, false},
		"word":                     {echoServer(t, ""), "hello", "hello", false, true},
		"part of a request":        {echoServer(t, ""), "GET / HTTP/1.1", "GET / HTTP/1.1", false, true},
		"server first":             {echoServer(t, "220 ready\r\n"), "", "220 ready\r\n", false, true},
		"part of a request, ended": {echoServer(t, ""), "GET / HT", "GET / HT", true, false},
		"end at once":              {echoServer(t, "23:59\r\n"), "", "23:59\r\n", true, false},
	} {
		limit := time.Hour
		if tt.waits {
			limit = 50 * time.Millisecond
		}
		for _, path := range []string{"in", "out", "in, with an identity"} {
			t.Run(name+" "+path, func(t *testing.T) {
				t.Parallel()
				c := sidecar.Config{Settings: settingsFor(t, newScript(t).addr)}
				c.Settings.Inbound.DetectTimeout, c.Outbound.DetectTimeout = limit, limit
				c.Settings.Inbound.Origin, c.Outbound.Origin = fixed(tt.app), fixed(tt.app)
				if path == "in, with an identity" {
					m.identified(t, serverName)(&c)
				}
				var logged safeBuffer
				tn := runWithLog(t, c, slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
				addr := tn.Inbound
				if path == "out" {
					addr = tn.Addr
				}
				w := dialWire(t, addr)
				say(w, tt.says)
				if tt.ends {
					w.closeWrite(t)
				}
				w.hear(t, tt.hears)
				if !tt.ends {
					say(w, "\v\x1c\r")
					w.closeWrite(t)
				}
				_, err := io.ReadAll(w.in)
				require.NoError(t, err)
				require.Equal(t, tt.waits, strings.Contains(logged.String(), "detection timed out"), logged.String())
			})
		}
	}
}
