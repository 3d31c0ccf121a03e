package tcplayer

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// helloOf is the ClientHello of crypto/tls.
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

// fragmented is the message in records of at most n bytes.
func fragmented(hello []byte, n int) []byte {
	var out []byte
	for piece := range slices.Chunk(hello[5:], n) {
		out = append(out, handshakeRecord, 3, 1, byte(len(piece)>>8), byte(len(piece)))
		out = append(out, piece...)
	}
	return out
}

func TestParseServerName(t *testing.T) {
	long := strings.Repeat("a.", 120) + "example"
	for name, tt := range map[string]struct {
		cfg  *tls.Config
		want string
	}{
		"plain":   {&tls.Config{}, ""},
		"name":    {&tls.Config{ServerName: "web.default"}, "web.default"},
		"TLS 1.2": {&tls.Config{ServerName: "web.default", MaxVersion: tls.VersionTLS12}, "web.default"},
		"ALPN":    {&tls.Config{ServerName: long, NextProtos: []string{"h2", "transport.l5d.io/v1"}}, long},
	} {
		t.Run(name, func(t *testing.T) {
			hello := helloOf(t, tt.cfg)
			for _, size := range []int{len(hello), 100, 7} {
				b := fragmented(hello, size)
				got, err := parseServerName(append(b, "and more"...))
				require.NoError(t, err)
				assert.Equal(t, tt.want, got)
				for i := range b {
					if _, err := parseServerName(b[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
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

// sized is s after its length of the given width.
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

func TestParseServerNameRejects(t *testing.T) {
	for name, b := range map[string][]byte{
		"HTTP":              []byte("GET"),
		"another record":    []byte("\x17"),
		"another version":   []byte("\x16\x02"),
		"a huge record":     []byte("\x16\x03\x01\x50\x01"),
		"another message":   []byte("\x16\x03\x01\x00\x04\x02"),
		"a huge message":    []byte("\x16\x03\x01\x00\x04\x01\x01\x00\x01"),
		"no body":           []byte("\x16\x03\x01\x00\x04\x01\x00\x00\x00"),
		"half an extension": made("\x00\x17\x00"),
		"two names":         made(sni("a", "b")),
		"no names":          made(sni()),
		"an empty name":     made(sni("")),
		"a name with a dot": made(sni("web.")),
	} {
		_, err := parseServerName(b)
		assert.ErrorIs(t, err, errNotTLS, name)
	}
	got, err := parseServerName(made(sni("web")))
	require.NoError(t, err)
	assert.Equal(t, "web", got)
}

// More bytes do not change the result.
func FuzzParseServerName(f *testing.F) {
	hello := helloOf(f, &tls.Config{ServerName: "web.default", NextProtos: []string{"h2"}})
	f.Add(hello)
	f.Add(fragmented(hello, 100))
	f.Add(helloOf(f, &tls.Config{ServerName: "web", MaxVersion: tls.VersionTLS12}))
	f.Add([]byte("\x16\x03\x01\x00\x04\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseServerName(b)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return
		}
		again, later := parseServerName(append(slices.Clone(b), "more"...))
		if !errors.Is(later, err) || again != got {
			t.Fatalf("%q, %v, and with more bytes %q, %v", got, err, again, later)
		}
	})
}
