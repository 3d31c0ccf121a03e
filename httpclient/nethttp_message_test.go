package httpclient_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// messageBehaviors are about requests, responses and their bodies.
var messageBehaviors = map[string]behavior{
	"request format": {
		tests: "Client GetRequestFormat PostRequestFormat PostFormRequestFormat TransportEmptyMethod H12_RequestContentLength_Known_NonZero " +
			"H12_RequestContentLength_Known_Zero H12_RequestContentLength_Unknown TransportUserAgent " +
			"StarRequestMethod",
		run: func(s *side) {
			url := s.serve(echo).URL
			c := s.client(settings{})
			s.get(c, url+"/path?a=b&c")
			for name, change := range ordered(map[string]func(*http.Request){
				"no method":       func(r *http.Request) { r.Method = "" },
				"OPTIONS":         func(r *http.Request) { r.Method = http.MethodOptions },
				"star":            func(r *http.Request) { r.Method, r.URL.Path = http.MethodOptions, "*" },
				"host":            func(r *http.Request) { r.Host = "other.example:80" },
				"unknown length":  func(r *http.Request) { r.ContentLength, r.Body = -1, io.NopCloser(strings.NewReader("text")) },
				"unknown empty":   func(r *http.Request) { r.Method, r.Body = "POST", io.NopCloser(strings.NewReader("")) },
				"known empty":     func(r *http.Request) { r.Method, r.Body = "POST", http.NoBody },
				"short buffer":    func(r *http.Request) { *r = *s.request("PUT", r.URL.String(), bytes.NewReader([]byte("12345"))) },
				"agent":           func(r *http.Request) { r.Header.Set("User-Agent", "me") },
				"empty agent":     func(r *http.Request) { r.Header.Set("User-Agent", "") },
				"nil agent":       func(r *http.Request) { r.Header["User-Agent"] = nil },
				"raw path":        func(r *http.Request) { r.URL.Opaque = "//" + r.URL.Host + "/a%2Fb" },
				"escaped":         func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/a/b c", "/a%2Fb%20c" },
				"empty query":     func(r *http.Request) { r.URL.ForceQuery = true },
				"two values":      func(r *http.Request) { r.Header["X-Two"] = []string{"1", "2"} },
				"unusual case":    func(r *http.Request) { r.Header["x-lower"] = []string{"1"} },
				"spaces in value": func(r *http.Request) { r.Header.Set("X-Space", " a ") },
			}) {
				req := s.request(http.MethodGet, url+"/", nil)
				change(req)
				s.named(name, func() { s.do(c, req) })
			}
			rsp, err := c.PostForm(url, map[string][]string{"k": {"v 1", "v2"}})
			s.seeBody(rsp, err)
		},
	},
	"bodies of unknown length": {
		tests: "ProbeZeroLengthBody",
		modes: "http https", // over HTTP/2, ours leaves the empty body out, too
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				echo(w, r)
				fmt.Fprintln(w, r.Trailer)
			}).URL
			c := s.client(settings{})
			for _, method := range []string{"", "GET", "HEAD", "DELETE", "OPTIONS", "PROPFIND", "SEARCH", "POST", "PATCH", "TRACE", "OTHER"} {
				for _, length := range []int64{0, -1} {
					for name, body := range ordered(map[string]func() io.Reader{
						"empty":   func() io.Reader { return strings.NewReader("") },
						"one":     func() io.Reader { return strings.NewReader("1") },
						"text":    func() io.Reader { return strings.NewReader("text") },
						"failing": func() io.Reader { return readerFunc(func([]byte) (int, error) { return 0, errStop }) },
					}) {
						tracked := newTracked(body())
						req := s.request(method, url, tracked)
						req.ContentLength = length
						s.named(method+" "+name, func() { s.do(c, req) })
						s.see(tracked.isClosed())
					}
				}
			}
			in, out := io.Pipe()
			time.AfterFunc(300*time.Millisecond, func() { // it is the time after which net/http sends the headers
				_, _ = io.WriteString(out, "slow")
				_ = out.Close()
			})
			s.do(c, s.request(http.MethodGet, url, in))
			for method, text := range ordered(map[string]string{http.MethodGet: "", http.MethodPost: "text"}) {
				chunked := s.request(method, url, readerFunc(strings.NewReader(text).Read))
				chunked.TransferEncoding = []string{"chunked"}
				chunked.Trailer = http.Header{"X-Sum": {"1"}}
				s.do(c, chunked)
			}
		},
	},
	"HEAD": {
		tests: "ClientHead ClientHeadContentLength TransportHeadResponses TransportHeadChunkedResponse H12_HeadContentLengthNoBody " +
			"H12_HeadContentLengthSmallBody H12_HeadContentLengthLargeBody H12_Head_ExplicitLen H12_Head_ImplicitLen",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				switch n := r.FormValue("n"); n {
				case "":
				case "chunked":
					http.NewResponseController(w).Flush()
				default:
					w.Header().Set("Content-Length", n)
				}
			}).URL
			c := s.client(settings{})
			for _, query := range []string{"", "?n=0", "?n=10", "?n=1000000", "?n=chunked"} {
				s.do(c, s.request(http.MethodHead, url+query, nil))
			}
		},
	},
	"response bodies": {
		tests: "H12_200NoBody H2_204NoBody H2_304NoBody H2_404NoBody H12_SmallBody H12_ExplicitContentLength H12_FlushBeforeBody " +
			"H12_FlushMidBody H12_HandlerWritesTooLittle H12_ServerEmptyContentLength ChunkedNoContent " +
			"304Responses ChunkedResponseHeaders TransportResponseHeaderLength ResponseBodyReadAfterClose",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				if n := q.Get("n"); n != "" {
					w.Header().Set("Content-Length", n)
				}
				if q.Has("large") {
					w.Header().Set("X-Large", strings.Repeat("x", 200<<10))
				}
				if status, err := strconv.Atoi(q.Get("status")); err == nil {
					w.WriteHeader(status)
				}
				for _, part := range q["part"] {
					_, _ = io.WriteString(w, part)
					_ = http.NewResponseController(w).Flush()
				}
			}).URL
			c := s.client(settings{})
			for _, query := range []string{
				"", "status=204", "status=304", "status=404", "part=one", "part=one&part=two", "n=3&part=one", "n=4&part=one",
				"n=0", "status=404&part=no", "large", "part=",
			} {
				s.named(query, func() { s.get(c, url+"/?"+query) })
			}
			rsp, err := c.Do(s.request(http.MethodGet, url+"/?part=one", nil))
			if s.see(kind(err)); err == nil {
				_ = rsp.Body.Close()
				_, err = rsp.Body.Read(make([]byte, 1))
				s.see(err != nil, err != io.EOF)
			}
		},
	},
	"streaming": {
		tests: "StreamingGet TransportFlushesBodyChunks TransportFlushesRequestHeader ConcurrentReadWriteReqBody BidiStreamReverseProxy",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				control := http.NewResponseController(w)
				_ = control.EnableFullDuplex()
				_ = control.Flush()
				piece := make([]byte, 1)
				for {
					if _, err := io.ReadFull(r.Body, piece); err != nil {
						return
					}
					_, _ = w.Write(piece)
					_ = control.Flush()
				}
			}).URL
			in, out := io.Pipe()
			rsp, err := s.client(settings{}).Do(s.request(http.MethodPost, url, in))
			if s.see(kind(err)); err != nil {
				return
			}
			defer rsp.Body.Close()
			piece := make([]byte, 1)
			for _, text := range "ping" {
				_, _ = io.WriteString(out, string(text))
				_, err = io.ReadFull(rsp.Body, piece)
				s.see(string(piece), kind(err))
			}
			_ = out.Close()
			rest, err := io.ReadAll(rsp.Body)
			s.see(len(rest), kind(err))
		},
	},
	"gzip": {
		tests: "RoundTripGzip TransportGzip TransportGzipShort TransportRangeAndGzip TransportContentEncodingCaseInsensitive " +
			"H12_AutoGzip H12_AutoGzip_Disabled H12_AutoGzipWithDumpResponse",
		run: func(s *side) {
			var packed bytes.Buffer
			zip := gzip.NewWriter(&packed)
			_, _ = io.WriteString(zip, strings.Repeat("text ", 1000))
			_ = zip.Close()
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Coding", r.Header.Get("Accept-Encoding"))
				w.Header().Set("Content-Encoding", r.FormValue("coding"))
				w.Header().Set("Content-Type", "text/plain")
				switch r.FormValue("body") {
				case "short":
					_, _ = w.Write(packed.Bytes()[:10])
				case "full":
					w.Header().Set("Content-Length", strconv.Itoa(packed.Len()))
					_, _ = w.Write(packed.Bytes())
				}
			}).URL
			for _, c := range []*http.Client{s.client(settings{}), s.client(settings{noCompression: true})} {
				for _, query := range []string{"coding=gzip&body=full", "coding=GZip&body=full", "coding=gzip&body=short", "coding=gzip", "coding=br&body=full"} {
					for _, field := range []string{"", "Range", "Accept-Encoding"} {
						req := s.request(http.MethodGet, url+"/?"+query, nil)
						if field != "" {
							req.Header.Set(field, "gzip")
						}
						s.do(c, req)
					}
					s.do(c, s.request(http.MethodHead, url+"/?"+query, nil))
				}
			}
			rsp, err := s.client(settings{}).Do(s.request(http.MethodGet, url+"/?coding=gzip&body=full", nil))
			if s.see(kind(err)); err == nil {
				rsp.Header.Del("Date")
				text, err := httputil.DumpResponse(rsp, true)
				s.see(string(text), kind(err))
			}
		},
	},
	"trailers": {
		tests: "TrailersClientToServer TrailersServerToClient TrailersServerToClientFlush ServerUndeclaredTrailers ValidateClientRequestTrailers",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				announced := slices.Sorted(maps.Keys(r.Trailer))
				w.Header().Set("Trailer", "X-One, X-Two")
				text, _ := io.ReadAll(r.Body)
				fmt.Fprintln(w, string(text), announced, r.Trailer)
				if r.URL.Path == "/flush" {
					_ = http.NewResponseController(w).Flush()
				}
				w.Header().Set("X-One", "1")
				w.Header().Set(http.TrailerPrefix+"X-Late", "late")
			}).URL
			c := s.client(settings{})
			for _, path := range []string{"/", "/flush"} {
				var req *http.Request
				req = s.request(http.MethodPost, url+path, readerFunc(func([]byte) (int, error) {
					req.Trailer.Set("X-Client", "sum")
					return 0, io.EOF
				}))
				req.Trailer = http.Header{"X-Client": nil, "X-Unset": nil}
				s.do(c, req)
			}
			for _, wrong := range []string{"Content-Length", "Trailer", "Transfer-Encoding", "a b", "X\n"} {
				req := s.request(http.MethodPost, url, strings.NewReader("text"))
				req.ContentLength = -1
				req.Trailer = http.Header{wrong: {"v"}}
				_, err := c.Do(req)
				s.see(wrong, err != nil)
			}
		},
	},
	"informational responses": {
		tests: "EarlyHintsRequest TransportIgnore1xxResponses TransportDoesNotLimitDelivered1xxResponses",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, _ *http.Request) {
				for i := range 3 {
					w.Header().Set("X-Number", strconv.Itoa(i))
					w.WriteHeader(http.StatusEarlyHints)
				}
				_, _ = io.WriteString(w, "final")
			}).URL
			c := s.client(settings{})
			s.get(c, url)
			req := s.request(http.MethodGet, url, nil)
			s.do(c, req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					s.see(code, h)
					return nil
				},
			})))
			rsp, err := c.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(int, textproto.MIMEHeader) error { return errStop },
			})))
			if s.see(rsp == nil); err == nil {
				_ = rsp.Body.Close()
			}
		},
	},
	"wrong requests": {
		tests: "TransportNoHost TransportRejectsAlphaPort TransportRejectsInvalidHeaders ClientErrorWithRequestURI StripPasswordFromError " +
			"TransportClosesBodyOnInvalidRequests",
		run: func(s *side) {
			url := s.serve(echo).URL
			c := s.client(settings{})
			for name, change := range ordered(map[string]func(*http.Request){
				"no host":           func(r *http.Request) { r.URL.Host = "" },
				"scheme":            func(r *http.Request) { r.URL.Scheme = "ftp" },
				"no scheme":         func(r *http.Request) { r.URL.Scheme = "" },
				"no URL":            func(r *http.Request) { r.URL = nil },
				"request URI":       func(r *http.Request) { r.RequestURI = "/" },
				"name of a field":   func(r *http.Request) { r.Header["a b"] = []string{"v"} },
				"value of a field":  func(r *http.Request) { r.Header["X"] = []string{"a\nb"} },
				"name of a trailer": func(r *http.Request) { r.Trailer = http.Header{"a b": nil} },
			}) {
				body := newTracked(strings.NewReader("text"))
				req := s.request(http.MethodPost, url, body)
				change(req)
				rsp, err := c.Do(req)
				if s.see(name, err != nil, body.isClosed()); err == nil {
					_ = rsp.Body.Close()
				}
			}
			_, err := c.Do(s.request(http.MethodGet, "ftp://joe:secret@127.0.0.1/", nil))
			s.see(err != nil, strings.Contains(fmt.Sprint(err), "secret"))
		},
	},
	"bodies of requests": {
		tests: "TransportBodyReadError ClientCallsCloseOnlyOnce TransportClosesRequestBody TransportClosesBodyOnError ReuseRequest",
		run: func(s *side) {
			url := s.serve(echo).URL
			c := s.client(settings{})
			for name, body := range ordered(map[string]*tracked{
				"full":    newTracked(strings.NewReader("text")),
				"failing": newTracked(io.MultiReader(strings.NewReader("te"), readerFunc(func([]byte) (int, error) { return 0, errStop }))),
			}) {
				rsp, err := c.Do(s.request(http.MethodPost, url, body))
				if s.see(name, errors.Is(err, errStop), body.isClosed()); err == nil {
					s.seeBody(rsp, nil)
				}
			}
			req := s.request(http.MethodGet, url, nil)
			s.do(c, req)
			s.do(c, req)
			for _, length := range []int64{3, 5} {
				if length > 4 && s.mode == "h2" {
					break // there, the error of net/http depends on which side is first to see that the body is short
				}
				req := s.request(http.MethodPost, url, io.NopCloser(strings.NewReader("text")))
				req.ContentLength = length
				rsp, err := c.Do(req)
				if s.see(length, err != nil); err == nil {
					_ = rsp.Body.Close()
				}
			}
		},
	},
	"authorization": {
		tests: "EmptyPasswordAuth BasicAuth BasicAuthHeadersPreserved",
		run: func(s *side) {
			to, err := url.Parse(s.serve(echo).URL)
			s.see(kind(err))
			c := s.client(settings{})
			for _, user := range []*url.Userinfo{url.User("joe"), url.UserPassword("joe", ""), url.UserPassword("joe", "secret")} {
				to.User = user
				for _, own := range []string{"", "Bearer token"} {
					req := s.request(http.MethodGet, to.String(), nil)
					if own != "" {
						req.Header.Set("Authorization", own)
					}
					s.do(c, req)
				}
			}
		},
	},
	"context": {
		tests: "TransportCheckContextDoneEarly TransportCancelRequestBeforeDo",
		run: func(s *side) {
			url := s.serve(echo).URL
			c := s.client(settings{})
			ctx, cancel := context.WithCancelCause(s.Context())
			cancel(errStop)
			_, err := c.Do(s.request(http.MethodGet, url, nil).WithContext(ctx))
			s.see(kind(err), errors.Is(err, errStop))
		},
	},
}

var errStop = errors.New("stop")

// echo answers with the request. The agent of HTTP/2 differs by its version.
func echo(w http.ResponseWriter, r *http.Request) {
	if agent := r.Header.Get("User-Agent"); strings.HasPrefix(agent, "Go-http-client/") {
		r.Header.Set("User-Agent", "Go")
	}
	text, err := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/plain")
	fmt.Fprintln(w, r.Method, r.RequestURI, r.Proto, r.Host != "" && !strings.HasPrefix(r.Host, "127."), r.ContentLength, r.TransferEncoding, r.Close)
	fmt.Fprintln(w, r.Header, string(text), err)
}

// tracked is the body of a request that must be closed, which may be after the response.
type tracked struct {
	io.Reader

	once   sync.Once
	closed chan struct{}
}

func newTracked(r io.Reader) *tracked { return &tracked{Reader: r, closed: make(chan struct{})} }

func (b *tracked) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

func (b *tracked) isClosed() bool {
	select {
	case <-b.closed:
		return true
	case <-time.After(time.Minute):
		return false
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// ordered yields the entries of a table in the order of their names.
func ordered[V any](table map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, name := range slices.Sorted(maps.Keys(table)) {
			if !yield(name, table[name]) {
				return
			}
		}
	}
}

// named runs f, and adds name to its observations.
func (s *side) named(name string, f func()) {
	before := len(s.log)
	f()
	for i := before; i < len(s.log); i++ {
		s.log[i] = name + ": " + s.log[i]
	}
}

// seeBody observes the status and the body of a response.
func (s *side) seeBody(rsp *http.Response, err error) {
	if err != nil {
		s.see("error", kind(err))
		return
	}
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	s.see(rsp.StatusCode, string(text), kind(err))
}
