package tcplayer

import (
	"io"
	"net"
	"testing"
	"time"
)

const megabyte = 1 << 20

// BenchmarkForward moves a megabyte from a server to a client at a time, by
// splice and by way of the process, with a plain io.Copy for comparison.
func BenchmarkForward(b *testing.B) {
	for name, opts := range map[string][]ForwardOption{"splice": nil, "idle": {IdleTimeout(time.Minute)}} {
		b.Run(name, func(b *testing.B) {
			j := join(b, b.Context(), opts...)
			move(b, j.server, j.client)
			j.client.Close()
			j.server.Close()
			<-j.done
		})
	}
	plain := func(b *testing.B, hide func(io.Reader) io.Reader) {
		b.Helper()
		client, accepted := tcpPair(b)
		made, server := tcpPair(b)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(accepted, hide(made))
		}()
		move(b, server, client)
		server.Close()
		<-done
	}
	b.Run("io.Copy spliced", func(b *testing.B) { plain(b, func(r io.Reader) io.Reader { return r }) })
	b.Run("io.Copy in process", func(b *testing.B) {
		plain(b, func(r io.Reader) io.Reader { return struct{ io.Reader }{r} })
	})
}

func move(b *testing.B, from, at net.Conn) {
	b.Helper()
	out, in := make([]byte, megabyte), make([]byte, megabyte)
	b.SetBytes(megabyte)
	b.ReportAllocs()
	for b.Loop() {
		go func() { _, _ = from.Write(out) }()
		if _, err := io.ReadFull(at, in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEndpoint is a connection made and closed, over the bare dial.
func BenchmarkEndpoint(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			conn.Close()
		}
	}()
	e := NewEndpoint(b.Context(), l.Addr().String())
	for name, call := range map[string]func() (net.Conn, error){
		"call": func() (net.Conn, error) { return e.Call(b.Context(), Request{}) },
		"dial": func() (net.Conn, error) { return new(net.Dialer).DialContext(b.Context(), "tcp", l.Addr().String()) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				conn, err := call()
				if err != nil {
					b.Fatal(err)
				}
				reset(conn)
			}
		})
	}
}

// BenchmarkUntilClosed is what observing costs a read.
func BenchmarkUntilClosed(b *testing.B) {
	b.Run("connection", func(b *testing.B) {
		near, _ := tcpPair(b)
		b.ReportAllocs()
		for b.Loop() {
			UntilClosed(b.Context(), near, nothing{}).(*held).end(nil)
		}
	})
	b.Run("read", func(b *testing.B) {
		near, _ := tcpPair(b)
		conn := UntilClosed(b.Context(), endless{near}, nothing{})
		p := make([]byte, 8)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = conn.Read(p)
		}
	})
}

type nothing struct{}

func (nothing) Data(int)  {}
func (nothing) End(error) {}

type endless struct{ net.Conn }

func (endless) Read(p []byte) (int, error) { return len(p), nil }
