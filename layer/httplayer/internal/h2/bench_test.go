package h2

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// unaryHeader is that of a call of grpc-go.
func unaryHeader() http.Header {
	return http.Header{
		"Content-Type": {"application/grpc"}, "User-Agent": {"grpc-go/1.85.0"}, "Te": {"trailers"}, "Grpc-Timeout": {"999m"},
	}
}

// unaryBody is a body in memory with the method Pending.
type unaryBody struct{ bytes.Reader }

func (b *unaryBody) Pending() (int, bool) { return b.Len(), true }
func (*unaryBody) Close() error           { return nil }

func (b *unaryBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.Len() == 0 {
		err = io.EOF
	}
	return n, err
}

// unary answers as a gRPC server.
func unary(req *http.Request) (*http.Response, error) {
	var b [256]byte
	n, _ := req.Body.Read(b[:])
	body := new(unaryBody)
	body.Reset(b[:n])
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"application/grpc"}}, ContentLength: -1,
		Body: body, Trailer: http.Header{"Grpc-Status": {"0"}},
	}, nil
}

// BenchmarkHop measures a gRPC call: between a client and a server of the
// engine, and with a proxy between them. The difference is the cost of the proxy.
func BenchmarkHop(b *testing.B) {
	for _, tt := range []struct {
		name  string
		proxy bool
	}{{"direct", false}, {"proxy", true}} {
		for _, parallel := range []int{1, 64} {
			b.Run(tt.name+"/"+strconv.Itoa(parallel), func(b *testing.B) {
				addr := serve(b, message.ServerConfig{Exchange: unary}).addr
				if tt.proxy {
					addr = proxy(b, addr, message.ServerConfig{}, ClientConfig{}).addr
				}
				tr := transport{dial(b, addr, &ClientConfig{})}
				<-tr.c.Settled()
				data := make([]byte, 133)
				call := func() {
					body := new(unaryBody)
					body.Reset(data)
					req := &http.Request{
						Method: "POST", URL: mustParse("http://h/bench.Bench/Unary"), Host: "127.0.0.1:28080",
						Header: unaryHeader(), Body: body, ContentLength: -1,
					}
					rsp, err := tr.RoundTrip(req)
					if err != nil {
						b.Error(err)
						return
					}
					var buf [256]byte
					for err == nil {
						_, err = rsp.Body.Read(buf[:])
					}
					_ = rsp.Body.Close()
					if rsp.Trailer.Get("Grpc-Status") != "0" {
						b.Error("no trailers")
					}
				}
				call()
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for i := range parallel {
					wg.Go(func() {
						for j := i; j < b.N; j += parallel {
							call()
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

func BenchmarkBody(b *testing.B) {
	data := make([]byte, 1<<20)
	s := serve(b, message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			_, _ = w.Write(data)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})})
	front := proxy(b, s.addr, message.ServerConfig{}, ClientConfig{})
	tr := transport{dial(b, front.addr, &ClientConfig{})}
	for _, method := range []string{"GET", "POST"} {
		b.Run(method, func(b *testing.B) {
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				var body io.Reader
				if method == "POST" {
					body = bytes.NewReader(data)
				}
				rsp, err := tr.RoundTrip(request(b, method, "h", "/", body))
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, rsp.Body)
				_ = rsp.Body.Close()
			}
		})
	}
}

func BenchmarkHPACK(b *testing.B) {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/bench.Bench/Unary"},
		{Name: ":authority", Value: "127.0.0.1:28080"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "grpc-go/1.85.0"}, {Name: "te", Value: "trailers"}, {Name: "grpc-timeout", Value: "999m"},
	}
	var w bytes.Buffer
	enc := hpack.NewEncoder(&w)
	write := func() []byte {
		w.Reset()
		for _, f := range fields {
			_ = enc.WriteField(f)
		}
		return bytes.Clone(w.Bytes())
	}
	first, indexed := write(), write()
	b.Run("decode indexed", func(b *testing.B) {
		dec := newDecoder()
		out, _ := dec.decode(first, nil, 1<<20)
		b.ReportAllocs()
		for b.Loop() {
			out, _ = dec.decode(indexed, out[:0], 1<<20)
		}
	})
	b.Run("decode literal", func(b *testing.B) {
		var literal []byte
		enc := encoder{}
		for _, f := range fields {
			literal = enc.field(literal, knownNames[f.Name], f.Name, f.Value)
		}
		dec := newDecoder()
		var out []field
		b.ReportAllocs()
		for b.Loop() {
			out, _ = dec.decode(literal, out[:0], 1<<20)
		}
	})
	b.Run("encode", func(b *testing.B) {
		enc := newEncoder()
		h := unaryHeader()
		var out []byte
		b.ReportAllocs()
		for b.Loop() {
			out = enc.field(enc.start(out[:0]), namePath, "", "/bench.Bench/Unary")
			out = enc.header(out, h)
		}
	})
}

// BenchmarkIdleConn reports the heap that an idle connection of a server holds,
// with the file descriptors of both sides.
func BenchmarkIdleConn(b *testing.B) {
	s := serve(b, message.ServerConfig{Exchange: handledBy(handler())})
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const conns = 500
	for b.Loop() {
		peers := make([]*peer, conns)
		before := heap()
		for i := range peers {
			peers[i] = rawClient(b, s.addr)
			peers[i].headers(1, true, with(get[:2], ":path: /length", ":authority: h", "user-agent: x")...)
			next[*http2.MetaHeadersFrame](peers[i])
			peers[i].Framer = nil
		}
		time.Sleep(2 * retireAfter)
		b.ReportMetric(float64(heap()-before)/conns, "heap-B/conn")
		for _, p := range peers {
			_ = p.nc.Close()
		}
	}
}
