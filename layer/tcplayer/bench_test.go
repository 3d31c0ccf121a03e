package tcplayer

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/gotower/gotower/internal/conntest"
)

const megabyte = 1 << 20

// BenchmarkForward moves a megabyte from a server to a client, by splice and
// through the process, compared with io.Copy.
func BenchmarkForward(b *testing.B) {
	for name, opts := range map[string][]ForwardOption{"splice": nil, "in process": {inProcess()}} {
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
		client, accepted := conntest.Pair(b)
		made, server := conntest.Pair(b)
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

// BenchmarkEndpoint compares a connection of an Endpoint with a plain dial.
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

// BenchmarkUntilClosed measures the cost of an observer for a read.
func BenchmarkUntilClosed(b *testing.B) {
	b.Run("connection", func(b *testing.B) {
		near, _ := conntest.Pair(b)
		b.ReportAllocs()
		for b.Loop() {
			UntilClosed(b.Context(), near, nothing{}).(*observedConn).end(nil)
		}
	})
	b.Run("read", func(b *testing.B) {
		near, _ := conntest.Pair(b)
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

// BenchmarkDetect measures the cost of detection after the first bytes have arrived.
func BenchmarkDetect(b *testing.B) {
	near, far := conntest.Pair(b)
	if _, err := io.WriteString(far, "GET / HTTP/1.1\r\nHost: web.default\r\n\r\n"); err != nil {
		b.Fatal(err)
	}
	one := serverFunc(func(context.Context, net.Conn) (ByteCount, error) { return ByteCount{}, nil })
	d := Detect(Protocols{HTTP1: one})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Call(b.Context(), near); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkForwardDetected moves a megabyte from a client to a server after
// detection.
func BenchmarkForwardDetected(b *testing.B) {
	for name, before := range map[string]func(Server) Server{
		"plain":       func(s Server) Server { return s },
		"detected":    func(s Server) Server { return Detect(Protocols{Opaque: s}) },
		"transparent": func(s Server) Server { return Transparent(FixedDst(ofServer), Detect(Protocols{Opaque: s}), nil) },
		"in process":  func(s Server) Server { return s },
	} {
		b.Run(name, func(b *testing.B) {
			client, accepted := conntest.Pair(b)
			made, server := conntest.Pair(b)
			var opts []ForwardOption
			if name == "in process" {
				opts = append(opts, inProcess())
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = before(Forward(to(made), opts...)).Call(b.Context(), accepted)
			}()
			move(b, client, server)
			client.Close()
			server.Close()
			<-done
		})
	}
}
