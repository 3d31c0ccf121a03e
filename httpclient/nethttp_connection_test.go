package httpclient_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// connectionBehaviors are about the use of connections, time limits and TLS.
var connectionBehaviors = map[string]behavior{
	"reuse": {
		tests: "TransportKeepAlives TransportReadToEndReusesConn TransportReuseConnEmptyResponseBody TransportReuseConnection_Gzip_Chunked " +
			"TransportReuseConnection_Gzip_ContentLength",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/chunked":
					_ = http.NewResponseController(w).Flush()
					_, _ = io.WriteString(w, "text")
				case "/length":
					_, _ = io.WriteString(w, "text")
				case "/status":
					w.WriteHeader(http.StatusNoContent)
				}
			}).URL
			c := s.client(settings{})
			for _, path := range []string{"/", "/chunked", "/length", "/status"} {
				for range 3 {
					var reused bool
					req := s.request(http.MethodGet, url+path, nil)
					s.do(c, req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
						GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
					})))
					s.see(path, reused)
				}
			}
		},
	},
	"close": {
		tests: "TransportConnectionCloseOnResponse TransportConnectionCloseOnRequest TransportRespectRequestWantsClose",
		modes: "http https",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/close" {
					w.Header().Set("Connection", "close")
				}
				_, _ = io.WriteString(w, r.Header.Get("Connection"))
			}).URL
			c := s.client(settings{})
			s.reused(c, url)
			s.reused(c, url)
			s.reused(c, url+"/close")
			s.reused(c, url)
			req := s.request(http.MethodGet, url, nil)
			req.Close = true
			s.do(c, req)
			s.reused(c, url)
			req = s.request(http.MethodGet, url, nil)
			req.Header.Set("Connection", "close")
			s.do(c, req)
			s.reused(c, url)
		},
	},
	"CloseIdleConnections": {
		tests: "ClientCloseIdleConnections CloseIdleConnections TransportCloseIdleConnsThenReturn",
		run: func(s *side) {
			url := s.serve(echo).URL
			c := s.client(settings{})
			s.reused(c, url)
			c.CloseIdleConnections()
			s.reused(c, url)
			s.reused(c, url)
		},
	},
	"a limit of connections": {
		tests: "TransportMaxConnsPerHost TransportMaxConnsPerHostIncludeDialInProgress",
		modes: "http https",
		run: func(s *side) {
			var active, most atomic.Int64
			url := s.serve(func(http.ResponseWriter, *http.Request) {
				most.Store(max(most.Load(), active.Add(1)))
				active.Add(-1)
			}).URL
			c := s.client(settings{maxConns: 1})
			var all sync.WaitGroup
			var failed atomic.Int64
			for range 20 {
				all.Go(func() {
					rsp, err := c.Do(s.request(http.MethodGet, url, nil))
					if err != nil {
						failed.Add(1)
						return
					}
					_ = rsp.Body.Close()
				})
			}
			all.Wait()
			s.see(most.Load(), failed.Load())
		},
	},
	"idle connections end": {
		tests: "TransportIdleConnTimeout TransportRemovesConnsAfterIdle TransportMaxPerHostIdleConns",
		modes: "http https",
		run: func(s *side) {
			closed := make(chan struct{}, 10)
			url := s.connectionsOf(closed)
			c := s.client(settings{idleTimeout: time.Millisecond})
			s.do(c, s.request(http.MethodGet, url, nil))
			<-closed
			s.see("closed after the idle timeout")
			c = s.client(settings{maxIdle: 1})
			both := make(chan struct{})
			var began sync.WaitGroup
			began.Add(2)
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() {
					rsp, err := c.Do(s.request(http.MethodGet, url, nil))
					began.Done()
					if err == nil {
						<-both
						_, _ = io.Copy(io.Discard, rsp.Body)
						_ = rsp.Body.Close()
					}
				})
			}
			began.Wait()
			close(both)
			all.Wait()
			<-closed
			s.see("closed above the limit")
		},
	},
	"time limits": {
		tests: "ClientTimeout ClientTimeout_Headers ClientTimeoutCancel ClientTimeoutDoesNotExpire ClientDoCanceledVsTimeout " +
			"ClientTimeoutKillsConn_BeforeHeaders ClientTimeoutKillsConn_AfterHeaders TransportResponseHeaderTimeout " +
			"Issue4191_InfiniteGetTimeout Issue4191_InfiniteGetToPutTimeout",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/body":
					_, _ = io.WriteString(w, "first")
					_ = http.NewResponseController(w).Flush()
					fallthrough
				case "/headers":
					<-r.Context().Done()
					panic(http.ErrAbortHandler) // else the body may end
				}
			}).URL
			c := s.client(settings{})
			c.Timeout = time.Minute
			s.get(c, url)
			c.Timeout = time.Millisecond
			_, err := c.Do(s.request(http.MethodGet, url+"/headers", nil))
			s.see(kind(err))
			for c.Timeout = 50 * time.Millisecond; ; c.Timeout *= 2 {
				rsp, err := c.Do(s.request(http.MethodGet, url+"/body", nil))
				if err != nil {
					continue // the machine needs longer for the headers
				}
				text, err := io.ReadAll(rsp.Body)
				_ = rsp.Body.Close()
				s.see(string(text), kind(err))
				break
			}
			c.Timeout = 0
			ctx, cancel := context.WithTimeout(s.Context(), time.Millisecond)
			_, err = c.Do(s.request(http.MethodGet, url+"/headers", nil).WithContext(ctx))
			s.see(kind(err))
			cancel()
			_, err = s.client(settings{headerTimeout: time.Millisecond}).Do(s.request(http.MethodGet, url+"/headers", nil))
			timeout, ok := errors.AsType[net.Error](err)
			s.see(ok && timeout.Timeout())
		},
	},
	"cancellation": {
		tests: "TransportCancelRequest TransportCancelRequestInDo TransportCancelRequestWithBodyInDo TransportCancelRequestWithBody " +
			"TransportCancelRequestBeforeResponseHeaders CancelRequestMidBody TransportCloseResponseBody",
		run: func(s *side) {
			arrived, ended := make(chan struct{}, 1), make(chan struct{}, 1)
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					_, _ = r.Body.Read(make([]byte, 1))
				}
				if r.URL.Path == "/body" {
					_, _ = io.WriteString(w, "first")
					_ = http.NewResponseController(w).Flush()
				}
				arrived <- struct{}{}
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					<-r.Context().Done()
				}
				ended <- struct{}{}
				panic(http.ErrAbortHandler) // else the body may end
			}).URL
			c := s.client(settings{})
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				ctx, cancel := context.WithCancel(s.Context())
				in, out := io.Pipe()
				var body io.Reader
				if method == http.MethodPost {
					body = in
					go func() { _, _ = io.WriteString(out, "text") }()
				}
				go func() { <-arrived; cancel(); _ = out.CloseWithError(errStop) }()
				_, err := c.Do(s.request(method, url, body).WithContext(ctx))
				if s.see(method, err != nil); method == http.MethodGet {
					s.see(kind(err))
				}
				<-ended
				_ = in.Close()
			}
			ctx, cancel := context.WithCancel(s.Context())
			rsp, err := c.Do(s.request(http.MethodGet, url+"/body", nil).WithContext(ctx))
			if s.see(kind(err)); err == nil {
				<-arrived
				cancel()
				text, err := io.ReadAll(rsp.Body)
				s.see(string(text), kind(err))
				_ = rsp.Body.Close()
				<-ended
			}
			cancel()
			rsp, err = c.Do(s.request(http.MethodGet, url+"/body", nil))
			if s.see(kind(err)); err == nil {
				<-arrived
				s.see(kind(rsp.Body.Close()))
				<-ended
			}
		},
	},
	"TLS": {
		tests: "ClientInsecureTransport ClientWithCorrectTLSServerName ClientWithIncorrectTLSServerName TransportUsesTLSConfigServerName " +
			"ResponseSetsTLSConnectionState TransportEventTraceTLSVerify",
		modes: "https h2",
		run: func(s *side) {
			url := s.serve(echo).URL
			for _, set := range []settings{{}, {insecure: true}, {serverName: "www.example.com"}} {
				rsp, err := s.client(set).Do(s.request(http.MethodGet, url, nil))
				if s.see(kind(err)); err == nil {
					s.see(rsp.Proto, rsp.TLS.NegotiatedProtocol, rsp.TLS.HandshakeComplete, rsp.TLS.ServerName, len(rsp.TLS.PeerCertificates))
					s.seeBody(rsp, nil)
				}
			}
			_, err := s.client(settings{serverName: "wrong.test", unreachable: true}).Do(s.request(http.MethodGet, url, nil))
			s.see(kind(err))
			s.roots = nil
			var once sync.Once
			req := s.request(http.MethodGet, url, nil)
			_, err = s.client(settings{unreachable: true}).Do(req.WithContext(httptrace.WithClientTrace(s.Context(), &httptrace.ClientTrace{
				TLSHandshakeDone: func(_ tls.ConnectionState, err error) { once.Do(func() { s.see(kind(err)) }) },
			})))
			s.see(kind(err))
		},
	},
	"failed handshakes": {
		tests: "TransportTLSHandshakeTimeout TLSServerClosesConnection HTTPSClientDetectsHTTPServer",
		modes: "http",
		run: func(s *side) {
			silent := s.connections(func(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
			closing := s.connections(func(_ net.Conn, in *bufio.Reader) { _, _ = in.ReadByte() })
			plain := s.answers("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			c := s.client(settings{connectTimeout: time.Millisecond, unreachable: true})
			for _, url := range []string{silent, closing, plain} {
				_, err := c.Do(s.request(http.MethodGet, strings.Replace(url, "http", "https", 1), nil))
				s.see(err != nil)
			}
		},
	},
	"hooks": {
		tests: "TransportEventTrace TransportEventTrace_NoHooks TLSHandshakeTrace TransportTraceGotConnH2IdleConns",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }).URL
			c := s.client(settings{})
			for range 2 {
				var mu sync.Mutex
				var called []string
				wrote := make(chan struct{})
				hook := func(name string) {
					mu.Lock()
					defer mu.Unlock()
					called = append(called, name)
				}
				req := s.request(http.MethodPost, url, strings.NewReader("text"))
				s.do(c, req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
					GetConn:              func(string) { hook("GetConn") },
					GotConn:              func(info httptrace.GotConnInfo) { hook(fmt.Sprint("GotConn ", info.Reused)) },
					GotFirstResponseByte: func() { hook("GotFirstResponseByte") },
					ConnectStart:         func(string, string) { hook("ConnectStart") },
					ConnectDone:          func(_, _ string, err error) { hook("ConnectDone " + kind(err)) },
					TLSHandshakeStart:    func() { hook("TLSHandshakeStart") },
					TLSHandshakeDone: func(state tls.ConnectionState, err error) {
						hook("TLSHandshakeDone " + kind(err) + state.NegotiatedProtocol)
					},
					WroteHeaders: func() { hook("WroteHeaders") },
					WroteRequest: func(info httptrace.WroteRequestInfo) {
						hook("WroteRequest " + kind(info.Err))
						close(wrote)
					},
				})))
				<-wrote // it may be after the response
				mu.Lock()
				slices.Sort(called)
				s.see(called)
				mu.Unlock()
			}
		},
	},
	"dialing": {
		tests: "TransportDialContext TransportCancelRequestInDial",
		run: func(s *side) {
			server := s.serve(echo)
			var dialed atomic.Value
			c := s.client(settings{dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				dialed.Store(network + " " + fmt.Sprint(addr == server.Listener.Addr().String()))
				return new(net.Dialer).DialContext(ctx, network, addr)
			}})
			s.get(c, server.URL)
			s.see(dialed.Load())
			dialing := make(chan struct{}, 100)
			c = s.client(settings{dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				dialing <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}})
			ctx, cancel := context.WithCancel(s.Context())
			go func() { <-dialing; cancel() }()
			_, err := c.Do(s.request(http.MethodGet, server.URL, nil).WithContext(ctx))
			s.see(kind(err))
			c = s.client(settings{unreachable: true, dial: func(context.Context, string, string) (net.Conn, error) { return nil, errStop }})
			_, err = c.Do(s.request(http.MethodGet, server.URL, nil))
			s.see(errors.Is(err, errStop))
		},
	},
}

// reused observes whether a GET request uses a connection again.
func (s *side) reused(c *http.Client, url string) {
	var reused bool
	req := s.request(http.MethodGet, url, nil)
	rsp, err := c.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
	})))
	s.seeBody(rsp, err)
	s.see("reused", reused)
}

// connectionsOf starts a server that sends to closed when a connection ends, and returns its URL.
func (s *side) connectionsOf(closed chan<- struct{}) string {
	return s.connections(func(conn net.Conn, in *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(in); err != nil {
				closed <- struct{}{}
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext")
		}
	})
}
