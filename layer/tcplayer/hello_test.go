package tcplayer

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// helloOf is what crypto/tls says first.
func helloOf(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	cfg.InsecureSkipVerify = true
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tls.Client(near, cfg).Handshake()
	}()
	buf := make([]byte, 64<<10)
	n, err := far.Read(buf)
	require.NoError(t, err)
	far.Close()
	<-done
	return buf[:n]
}

// fragmented is the same message in records of at most n bytes.
func fragmented(hello []byte, n int) []byte {
	var out []byte
	for piece := range slices.Chunk(hello[5:], n) {
		out = append(out, handshakeRecord, 3, 1, byte(len(piece)>>8), byte(len(piece)))
		out = append(out, piece...)
	}
	return out
}

func TestParseClientHello(t *testing.T) {
	long := strings.Repeat("a.", 120) + "example"
	for name, tt := range map[string]struct {
		cfg  *tls.Config
		want ClientHello
	}{
		"plain":   {&tls.Config{}, ClientHello{}},
		"name":    {&tls.Config{ServerName: "web.default"}, ClientHello{ServerName: "web.default"}},
		"TLS 1.2": {&tls.Config{ServerName: "web.default", MaxVersion: tls.VersionTLS12}, ClientHello{ServerName: "web.default"}},
		"ALPN": {
			&tls.Config{ServerName: long, NextProtos: []string{"h2", "transport.l5d.io/v1"}},
			ClientHello{ServerName: long, Protocols: []string{"h2", "transport.l5d.io/v1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			hello := helloOf(t, tt.cfg)
			for _, size := range []int{len(hello), 100, 7} {
				b := fragmented(hello, size)
				got, err := ParseClientHello(append(b, "and more"...))
				require.NoError(t, err)
				assert.Equal(t, tt.want, got)
				for i := range b { // as it comes, byte by byte
					if _, err := ParseClientHello(b[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Fatalf("%d bytes of %d: %v", i, len(b), err)
					}
				}
			}
		})
	}
}

// made is a ClientHello with these extensions.
func made(extensions ...string) []byte {
	all := strings.Join(extensions, "")
	body := "\x03\x03" + strings.Repeat("r", 32) + "\x00" + "\x00\x02\x13\x01" + "\x01\x00" + sized(2, all)
	return []byte("\x16\x03\x01" + sized(2, "\x01"+sized(3, body)))
}

// sized is s after its length, of that width.
func sized(width int, s string) string {
	var length []byte
	for i := width - 1; i >= 0; i-- {
		length = append(length, byte(len(s)>>(8*i)))
	}
	return string(length) + s
}

func sni(names ...string) string {
	list := ""
	for _, name := range names {
		list += "\x00" + sized(2, name)
	}
	return "\x00\x00" + sized(2, sized(2, list))
}

func TestParseClientHelloRejects(t *testing.T) {
	whole := "\x03\x03" + strings.Repeat("r", 32) + "\x00" + "\x00\x02\x13\x01" + "\x01\x00"
	hello := func(body string) []byte { return []byte("\x16\x03\x01" + sized(2, "\x01"+sized(3, body))) }
	for name, b := range map[string][]byte{
		"HTTP":                []byte("GET"),
		"another record":      []byte("\x17"),
		"another version":     []byte("\x16\x02"),
		"an empty record":     []byte("\x16\x03\x01\x00\x00"),
		"a huge record":       []byte("\x16\x03\x01\x40\x01"),
		"another message":     []byte("\x16\x03\x01\x00\x04\x02"),
		"a huge message":      []byte("\x16\x03\x01\x00\x04\x01\x01\x00\x01"),
		"another record then": append(fragmented(made(), 5)[:10], 0x17),
		"no body":             hello(""),
		"half a suite":        hello("\x03\x03" + strings.Repeat("r", 32) + "\x00" + "\x00\x03abc" + "\x01\x00"),
		"a byte more":         hello(whole + "\x00\x00x"),
		"a byte less":         hello(whole + "\x00\x01"),
		"half an extension":   made("\x00\x17\x00"),
		"a long extension":    made("\x00\x17\x00\x01"),
		"two SNI":             made(sni("a"), sni("b")),
		"two names":           made(sni("a", "b")),
		"no names":            made(sni()),
		"an empty name":       made(sni("")),
		"a name with a dot":   made(sni("web.")),
		"more than a list":    made("\x00\x00" + sized(2, sized(2, "\x00"+sized(2, "a"))+"x")),
		"half a name":         made("\x00\x00" + sized(2, sized(2, "\x00\x00\x02a"))),
		"two ALPN":            made("\x00\x10"+sized(2, sized(2, "\x02h2")), "\x00\x10"+sized(2, sized(2, "\x02h2"))),
		"no protocols":        made("\x00\x10" + sized(2, sized(2, ""))),
		"an empty protocol":   made("\x00\x10" + sized(2, sized(2, "\x00"))),
		"half a protocol":     made("\x00\x10" + sized(2, sized(2, "\x03h2"))),
	} {
		_, err := ParseClientHello(b)
		assert.ErrorIs(t, err, ErrNotTLS, name)
	}
	for name, want := range map[string]ClientHello{
		string(hello(whole)): {}, string(made()): {}, string(made(sni("web"))): {ServerName: "web"},
		string(made("\x00\x00" + sized(2, sized(2, "\x07"+sized(2, "odd")+"\x00"+sized(2, "web"))))): {ServerName: "web"},
	} {
		got, err := ParseClientHello([]byte(name))
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

// What crypto/tls takes for a ClientHello is one here, and of the same name and
// protocols; what is one by its first bytes stays one when more come.
func FuzzParseClientHello(f *testing.F) {
	hello := helloOf(f, &tls.Config{ServerName: "web.default", NextProtos: []string{"h2"}})
	f.Add(hello)
	f.Add(fragmented(hello, 100))
	f.Add(helloOf(f, &tls.Config{ServerName: "web", MaxVersion: tls.VersionTLS12}))
	f.Add(made(sni("web"), "\x00\x10"+sized(2, sized(2, "\x02h2"))))
	f.Add([]byte("\x16\x03\x01\x00\x04\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ParseClientHello(b)
		if err != nil && !errors.Is(err, ErrNotTLS) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			again, later := ParseClientHello(append(slices.Clone(b), "more"...))
			if !errors.Is(later, err) || again.ServerName != got.ServerName {
				t.Fatalf("%v, and with more %v", err, later)
			}
		}
		if want, ok := heard(b); ok && usual(b) {
			if err != nil || got.ServerName != want.ServerName || !slices.Equal(got.Protocols, want.Protocols) {
				t.Fatalf("%+v, %v, and crypto/tls says %+v", got, err, want)
			}
		}
	})
}

// usual reports whether all is in handshake records of a version that is in use:
// crypto/tls takes others, and warnings in between.
func usual(b []byte) bool {
	for len(b) >= 5 {
		if b[0] != handshakeRecord || b[1] != 3 {
			return false
		}
		b = b[min(len(b), 5+int(b[3])<<8+int(b[4])):]
	}
	return true
}

// heard is what crypto/tls makes of b, if it is a ClientHello.
func heard(b []byte) (hello ClientHello, ok bool) {
	enough := errors.New("enough")
	conn := tls.Server(said{bytes.NewReader(b)}, &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		hello, ok = ClientHello{info.ServerName, info.SupportedProtos}, true
		return nil, enough
	}})
	_ = conn.Handshake()
	return hello, ok
}

// said is a connection whose client says r.
type said struct{ r io.Reader }

func (s said) Read(p []byte) (int, error)     { return s.r.Read(p) }
func (said) Write(p []byte) (int, error)      { return len(p), nil }
func (said) Close() error                     { return nil }
func (said) LocalAddr() net.Addr              { return nil }
func (said) RemoteAddr() net.Addr             { return nil }
func (said) SetDeadline(time.Time) error      { return nil }
func (said) SetReadDeadline(time.Time) error  { return nil }
func (said) SetWriteDeadline(time.Time) error { return nil }
