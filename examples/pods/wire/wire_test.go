package wire_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/examples/pods/wire"
)

var (
	client = netip.MustParseAddrPort("10.77.0.10:40000")
	server = netip.MustParseAddrPort("10.77.0.11:80")
)

const flagSYN, flagACK = 2, 16

// capture writes a file of libpcap.
type capture struct {
	bytes.Buffer

	order binary.ByteOrder
}

func newCapture(order binary.ByteOrder, magic, link uint32) *capture {
	c := &capture{order: order}
	head := make([]byte, 24)
	order.PutUint32(head, magic)
	order.PutUint32(head[20:], link)
	c.Write(head)
	return c
}

func (c *capture) frame(f []byte) {
	head := make([]byte, 16)
	c.order.PutUint32(head[8:], uint32(len(f)))
	c.order.PutUint32(head[12:], uint32(len(f)))
	c.Write(head)
	c.Write(f)
}

// segment is a frame of Ethernet with TCP over IPv4 or IPv6, with options in
// the head of TCP and padding behind, as short frames have it.
func segment(from, to netip.AddrPort, seq uint32, flags byte, data string) []byte {
	tcp := make([]byte, 24, 24+len(data))
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13] = 6<<4, flags
	tcp = append(tcp, data...)
	frame := make([]byte, 14)
	if from.Addr().Is4() {
		binary.BigEndian.PutUint16(frame[12:], 0x0800)
		ip := make([]byte, 20)
		ip[0], ip[9] = 0x45, 6
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(tcp)))
		copy(ip[12:], from.Addr().AsSlice())
		copy(ip[16:], to.Addr().AsSlice())
		frame = slices.Concat(frame, ip)
	} else {
		binary.BigEndian.PutUint16(frame[12:], 0x86dd)
		ip := make([]byte, 40)
		ip[0], ip[6] = 0x60, 6
		binary.BigEndian.PutUint16(ip[4:], uint16(len(tcp)))
		copy(ip[8:], from.Addr().AsSlice())
		copy(ip[24:], to.Addr().AsSlice())
		frame = slices.Concat(frame, ip)
	}
	return slices.Concat(frame, tcp, []byte("padding"))
}

func TestReadFileFormats(t *testing.T) {
	six := netip.MustParseAddrPort("[fd00::1]:40000")
	for name, c := range map[string]*capture{
		"little": newCapture(binary.LittleEndian, 0xa1b2c3d4, 1),
		"big":    newCapture(binary.BigEndian, 0xa1b2c3d4, 1),
		"nano":   newCapture(binary.LittleEndian, 0xa1b23c4d, 1),
	} {
		c.frame([]byte("too short"))
		c.frame(make([]byte, 60)) // of no protocol
		c.frame(segment(client, server, 99, flagSYN, ""))
		c.frame(segment(server, client, 499, flagSYN|flagACK, ""))
		c.frame(segment(client, server, 100, flagACK, "GET /"))
		c.frame(segment(six, six, 7, flagACK, "half of it"))
		c.frame(segment(server, client, 500, flagACK, "200"))
		c.frame(segment(client, server, 98, flagACK, "x")) // a probe whether it lives
		c.frame(segment(client, server, 2000, flagSYN, ""))
		c.frame(segment(client, server, 2001, flagACK, "another"))
		c.frame(segment(client, server, 2009, flagACK, "which lacks a byte"))
		c.Write([]byte("cut of")) // while it was written
		flows, err := wire.Read(c)
		require.NoError(t, err, name)
		assert.Equal(t, []wire.Flow{
			{From: client, To: server, Data: []byte("GET /")},
			{From: server, To: client, Data: []byte("200")},
			{From: six, To: six, Data: []byte("half of it")},
			{From: client, To: server, Data: []byte("another"), Lost: true},
		}, flows, name)
	}
}

// Segments are repeated, overlap, are out of order, and pass the end of the sequence
// numbers. The bytes are those that were sent.
func TestReadAssemblesFlows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := []byte(rapid.StringN(1, 400, 400).Draw(t, "data"))
		first := rapid.SampledFrom([]uint32{0, 1000, 1<<32 - 1, 1<<32 - 200, 1<<31 - 100}).Draw(t, "first")
		var frames [][]byte
		at := func(from, to int) {
			frames = append(frames, segment(client, server, first+uint32(from), flagACK, string(data[from:to])))
		}
		for from := 0; from < len(data); {
			to := rapid.IntRange(from+1, min(len(data), from+100)).Draw(t, "to")
			at(from, to)
			if rapid.Bool().Draw(t, "again") {
				again := rapid.IntRange(0, from).Draw(t, "from")
				at(again, rapid.IntRange(again, to).Draw(t, "until"))
			}
			from = to
		}
		frames = rapid.Permutation(frames).Draw(t, "order")
		c := newCapture(binary.LittleEndian, 0xa1b2c3d4, 1)
		c.frame(segment(client, server, first-1, flagSYN, ""))
		for _, f := range frames {
			c.frame(f)
		}
		flows, err := wire.Read(c)
		require.NoError(t, err)
		require.Equal(t, []wire.Flow{{From: client, To: server, Data: data}}, flows)
	})
}

func TestReadInvalidFiles(t *testing.T) {
	long := newCapture(binary.LittleEndian, 0xa1b2c3d4, 1)
	head := make([]byte, 16)
	binary.LittleEndian.PutUint32(head[8:], 1<<30)
	long.Write(head)
	short := newCapture(binary.LittleEndian, 0xa1b2c3d4, 1)
	head = make([]byte, 16)
	binary.LittleEndian.PutUint32(head[8:], 10)
	binary.LittleEndian.PutUint32(head[12:], 20)
	short.Write(head)
	for want, r := range map[string]io.Reader{
		"wire: capture: EOF":                 strings.NewReader(""),
		"is not a libpcap capture":           strings.NewReader("GET / HTTP/1.1\r\nHost: there\r\n\r\n"),
		"link type 113":                      newCapture(binary.BigEndian, 0xa1b2c3d4, 113),
		"1073741824 bytes":                   long,
		"10 bytes captured of a frame of 20": short,
	} {
		_, err := wire.Read(r)
		require.ErrorContains(t, err, want)
	}
}

// recorder records the bytes that are written to a connection.
type recorder struct {
	net.Conn

	mu   sync.Mutex
	sent []byte
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.sent = append(r.sent, p...)
	r.mu.Unlock()
	return r.Conn.Write(p)
}

// shake makes a TLS connection and returns the bytes of both sides.
func shake(t *testing.T, cfg *tls.Config) (from, to wire.Flow) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"web.default"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	a, b := net.Pipe()
	c, s := &recorder{Conn: a}, &recorder{Conn: b}
	var both sync.WaitGroup
	both.Go(func() {
		srv := tls.Server(s, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		_, _ = io.Copy(srv, srv)
		srv.Close()
	})
	cfg.InsecureSkipVerify = true
	cli := tls.Client(c, cfg)
	_, err = cli.Write([]byte("the secret"))
	require.NoError(t, err)
	_, err = io.ReadFull(cli, make([]byte, len("the secret")))
	require.NoError(t, err)
	require.NoError(t, cli.Close())
	both.Wait()
	return wire.Flow{Data: c.sent}, wire.Flow{Data: s.sent}
}

func TestFlowTLS(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c, s := shake(t, &tls.Config{ServerName: "web.default", MaxVersion: version})
		require.True(t, c.TLS())
		require.True(t, s.TLS())
		require.Equal(t, "web.default", c.ServerName())
		require.Empty(t, s.ServerName())
		require.True(t, wire.Flow{Data: c.Data[:len(c.Data)-3]}.TLS(), "cut off")
		require.False(t, wire.Flow{Data: append(bytes.Clone(c.Data), "GET / HTTP/1.1\r\n"...)}.TLS(), "TLS, and then in clear")
		require.False(t, wire.Flow{Data: c.Data[1:]}.TLS())
	}
	require.True(t, wire.Flow{Data: []byte{21, 3, 3, 0, 2, 2, 80}}.TLS(), "an alert, and no more")
	for _, plain := range []string{"", "\x16", "\x17\x03\x03\x00\x01x", "GET / HTTP/1.1\r\n", "\x16\x02\x00\x00\x01x", "\x16\x03\x03\xff\xffx"} {
		require.False(t, wire.Flow{Data: []byte(plain)}.TLS(), "%q", plain)
		require.Empty(t, wire.Flow{Data: []byte(plain)}.ServerName())
	}
}

// Any file is read or refused, and nothing is made up: a flow has no more bytes
// than the file.
func FuzzRead(f *testing.F) {
	c := newCapture(binary.LittleEndian, 0xa1b2c3d4, 1)
	c.frame(segment(client, server, 99, flagSYN, ""))
	c.frame(segment(client, server, 100, flagACK, "GET /"))
	c.frame(segment(netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2"), 100, flagACK, "\x16\x03\x01\x00\x01x"))
	f.Add(c.Bytes())
	f.Fuzz(func(t *testing.T, file []byte) {
		flows, _ := wire.Read(bytes.NewReader(file))
		total := 0
		for _, flow := range flows {
			total += len(flow.Data)
			flow.TLS()
			flow.ServerName()
		}
		require.LessOrEqual(t, total, len(file))
	})
}

func ExampleRead() {
	c := newCapture(binary.LittleEndian, 0xa1b2c3d4, 1)
	c.frame(segment(client, server, 1, flagACK, "GET / HTTP/1.1\r\n"))
	flows, err := wire.Read(c)
	if err != nil {
		panic(err)
	}
	for _, f := range flows {
		fmt.Println(f.From, "→", f.To, "TLS:", f.TLS())
	}
	// Output:
	// 10.77.0.10:40000 → 10.77.0.11:80 TLS: false
}
