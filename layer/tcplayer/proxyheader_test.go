package tcplayer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
)

func v2(command, family byte, body string) string {
	return proxyV2 + string([]byte{command, family}) + sized(2, body)
}

const tlv = "\x03\x00\x04abcd" // a checksum, which is ignored

func TestParseProxyHeader(t *testing.T) {
	four := [2]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:56324"), netip.MustParseAddrPort("198.51.100.1:443")}
	six := [2]netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:56324"), netip.MustParseAddrPort("[2001:db8::2]:443")}
	mapped := [2]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("[2001:db8::2]:0")}
	ports := "\xdc\x04\x01\xbb"
	bytes16 := func(a netip.Addr) string { b := a.As16(); return string(b[:]) }
	six2 := bytes16(six[0].Addr()) + bytes16(six[1].Addr()) + ports
	four2 := "\xc0\x00\x02\x01\xc6\x33\x64\x01" + ports
	for header, want := range map[string][2]netip.AddrPort{
		"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n":  four,
		"PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n": six,
		"PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 0\r\n":  mapped,
		"PROXY UNKNOWN\r\n":                                 {},
		"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n":     {},
		"PROXY UNKNOWN " + strings.Repeat("x", 91) + "\r\n": {}, // the longest
		v2(0x21, 0x11, four2):                               four,
		v2(0x21, 0x11, four2+tlv):                           four,
		v2(0x21, 0x21, six2):                                six,
		v2(0x21, 0x21, six2+strings.Repeat(tlv, 500)):       six,
		v2(0x20, 0x00, ""):                                  {},
		v2(0x20, 0x11, four2):                               {},
		v2(0x21, 0x00, tlv):                                 {},
		v2(0x21, 0x31, strings.Repeat("/", 216)):            {},
	} {
		h, err := parseProxyHeader([]byte(header + "GET / HTTP/1.1"))
		require.NoError(t, err, "%q", header)
		assert.Equal(t, proxyHeader{want[0], want[1], len(header)}, h, "%q", header)
		for i := range len(header) {
			_, err := parseProxyHeader([]byte(header[:i]))
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%q", header[:i])
		}
	}
	for header, says := range map[string]string{
		"GET / HTTP/1.1\r\n":                         "header is missing",
		"PROXX":                                      "header is missing",
		"PROXY\r\n":                                  "header is missing",
		"\r\n\r\n\x00\r\nQUIX":                       "header is missing",
		"PROXY \r\n":                                 "unknown line of version 1",
		"PROXY TCP4\r\n":                             "unknown line of version 1",
		"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n":         "unknown line of version 1",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n":           "unknown line of version 1",
		"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n":        "unknown line of version 1",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n":        "unknown line of version 1",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n":           "must end with CR LF",
		"PROXY " + strings.Repeat("x", 100) + "\r\n": "must end with CR LF within 107 bytes",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n":     "65536 must be a port",
		"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n":        "+1 must be a port",
		"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n":        "01 must be a port",
		"PROXY TCP4 1.2.3.04 1.2.3.4 1 2\r\n":        "IPv4 field has octet with leading zero",
		"PROXY TCP4 ::1 1.2.3.4 1 2\r\n":             "::1 must be an address of TCP4",
		"PROXY TCP6 1.2.3.4 ::1 1 2\r\n":             "1.2.3.4 must be an address of TCP6",
		"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n":        "fe80::1%eth0 must be an address of TCP6",
		v2(0x11, 0x11, four2):                        "version and command 0x11",
		v2(0x22, 0x11, four2):                        "version and command 0x22",
		v2(0x21, 0x12, four2):                        "address family and transport 0x12",
		v2(0x21, 0x11, four2[1:]):                    "11 bytes are too few for two addresses",
		v2(0x21, 0x21, six2[1:]):                     "35 bytes are too few for two addresses",
		v2(0x21, 0x21, strings.Repeat("x", 4081)):    "header has 4097 bytes, limit 4096",
	} {
		_, err := parseProxyHeader([]byte(header))
		require.ErrorContains(t, err, says, "%q", header)
	}
}

// A header ends at its own length, and an incomplete one is not parsed.
func FuzzParseProxyHeader(f *testing.F) {
	for _, seed := range []string{
		"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n", "PROXY UNKNOWN\r\n",
		v2(0x21, 0x11, strings.Repeat("x", 12)+tlv), v2(0x21, 0x21, strings.Repeat("x", 36)), v2(0x20, 0, ""),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseProxyHeader(b)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			if len(b) >= maxProxyHeader {
				t.Fatal("more is asked for than will be looked at")
			}
			return
		}
		buffered, later := parseProxyHeader(append(bytes.Clone(b), "more"...))
		if (err == nil) != (later == nil) || buffered != h {
			t.Fatalf("%+v %v, and with more %+v %v", h, err, buffered, later)
		}
		if err != nil {
			return
		}
		if h.size > len(b) || h.client.IsValid() != h.server.IsValid() {
			t.Fatalf("%+v", h)
		}
		for i := range h.size {
			if _, err := parseProxyHeader(b[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%q: %v", b[:i], err)
			}
		}
	})
}

func TestProxyProtocol(t *testing.T) {
	header := "PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n"
	want := Request{Client: netip.MustParseAddrPort("192.0.2.1:56324"), Server: netip.MustParseAddrPort("198.51.100.1:443")}
	ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
		var asked Request
		svc := Transparent(ProxyProtocol(), Detect(Protocols{Opaque: serverFunc(func(ctx context.Context, conn net.Conn) (ByteCount, error) {
			asked = requestOf(conn)
			return named("served").Call(ctx, conn)
		})}), nil)
		client, accepted := pair()
		go svc.Call(t.Context(), accepted)
		go func() {
			(&dribble{Conn: client}).Write([]byte(header + strings.Repeat("question", 500)))
			client.CloseWrite()
		}()
		got, err := io.ReadAll(client)
		require.NoError(t, err)
		assert.Equal(t, "served: "+strings.Repeat("question", 500), string(got))
		assert.Equal(t, want, asked)

		client, accepted = pair()
		io.WriteString(client, header+"question")
		_, err = Transparent(ProxyProtocol(), rejecting(), nil).Call(t.Context(), accepted)
		require.ErrorContains(t, err, "rejected after the first bytes were read: limit: not ready: full")
		_, err = client.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)

		client, accepted = pair()
		io.WriteString(client, "GET / HTTP/1.1\r\n")
		_, err = Transparent(ProxyProtocol(), rejecting(), nil).Call(t.Context(), accepted)
		require.EqualError(t, err, "origin: no original destination: PROXY protocol: header is missing")

		client, accepted = pair()
		io.WriteString(client, "PROXY ")
		client.CloseWrite()
		_, err = Transparent(ProxyProtocol(), rejecting(), nil).Call(t.Context(), accepted)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
}

// A health check sends a header without addresses or no bytes, and is for the
// listener itself.
func TestProxyProtocolWithoutAddresses(t *testing.T) {
	local := WithSkipDetect(func(_ context.Context, conn net.Conn) bool { return false })
	for name, tt := range map[string]struct {
		said string
		opt  DetectOption
	}{
		"LOCAL":   {v2(0x20, 0, ""), local},
		"skipped": {"", WithSkipDetect(func(context.Context, net.Conn) bool { return true })},
	} {
		t.Run(name, func(t *testing.T) {
			client, accepted := conntest.Pair(t)
			var asked Request
			direct := serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
				asked = requestOf(conn)
				return ByteCount{}, conn.Close()
			})
			io.WriteString(client, tt.said)
			_, err := Transparent(ProxyProtocol(tt.opt), rejecting(), direct).Call(t.Context(), accepted)
			require.NoError(t, err)
			assert.Equal(t, Request{Client: addrOf(client.LocalAddr()), Server: addrOf(client.RemoteAddr())}, asked)
		})
	}
}

func TestProxyProtocolTimeout(t *testing.T) {
	for want, opts := range map[time.Duration][]DetectOption{10 * time.Second: nil, time.Second: {WithDetectTimeout(time.Second)}} {
		synctest.Test(t, func(t *testing.T) {
			client, accepted := net.Pipe()
			go io.WriteString(client, "PROXY TCP4")
			start := time.Now()
			_, err := Transparent(ProxyProtocol(opts...), rejecting(), nil).Call(t.Context(), accepted)
			require.ErrorContains(t, err, "PROXY protocol: ")
			assert.True(t, isTimeout(err))
			assert.Equal(t, want, time.Since(start))
		})
	}
}

// The parser reads what an Endpoint sends.
func TestEncodeProxyHeader(t *testing.T) {
	addr := netip.MustParseAddrPort
	for _, c := range []struct {
		client, server netip.AddrPort
		want           [2]netip.AddrPort
		line           string
	}{
		{
			addr("192.0.2.1:56324"), addr("198.51.100.1:443"),
			[2]netip.AddrPort{addr("192.0.2.1:56324"), addr("198.51.100.1:443")}, "PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n",
		},
		{
			addr("[2001:db8::1]:1"), addr("[2001:db8::2%eth0]:2"),
			[2]netip.AddrPort{addr("[2001:db8::1]:1"), addr("[2001:db8::2]:2")}, "PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n",
		},
		{
			addr("192.0.2.1:1"), addr("[2001:db8::2]:2"),
			[2]netip.AddrPort{addr("192.0.2.1:1"), addr("[2001:db8::2]:2")}, "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n",
		},
		{
			addr("[::ffff:192.0.2.1]:1"), netip.AddrPort{},
			[2]netip.AddrPort{addr("192.0.2.1:1"), addr("0.0.0.0:0")}, "PROXY TCP4 192.0.2.1 0.0.0.0 1 0\r\n",
		},
		{
			addr("[2001:db8::1]:1"), netip.AddrPort{},
			[2]netip.AddrPort{addr("[2001:db8::1]:1"), addr("[::]:0")}, "PROXY TCP6 2001:db8::1 :: 1 0\r\n",
		},
		{netip.AddrPort{}, addr("198.51.100.1:443"), [2]netip.AddrPort{}, "PROXY UNKNOWN\r\n"},
	} {
		assert.Equal(t, c.line, string(encodeProxyV1(c.client, c.server)))
		for _, encoded := range [][]byte{encodeProxyV1(c.client, c.server), encodeProxyV2(c.client, c.server)} {
			h, err := parseProxyHeader(encoded)
			require.NoError(t, err)
			assert.Equal(t, proxyHeader{c.want[0], c.want[1], len(encoded)}, h, "%q", encoded)
		}
	}
	assert.Panics(t, func() { WithProxyHeader(3) })
}
