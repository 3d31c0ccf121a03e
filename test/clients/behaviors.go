package main

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// behaviors are the situations to compare, each with a function that describes what a client does.
var behaviors = []struct {
	situation string
	run       func(newClient func(settings) *http.Client) string
}{
	{"the only address refuses", func(newClient func(settings) *http.Client) string {
		start := time.Now()
		_, err := get(newClient(settings{}), "http://"+refusing("127.0.0.1:0")+"/")
		text := "an error"
		if errors.Is(err, syscall.ECONNREFUSED) {
			text = "`connection refused`"
		}
		return text + " " + after(start)
	}},
	{"one of three addresses refuses, 100 GETs", three(100, func(http.ResponseWriter) {}, true)},
	{"one of three addresses needs 100 ms, 100 GETs", three(100, func(http.ResponseWriter) { time.Sleep(100 * time.Millisecond) }, false)},
	{"one of three addresses answers 503, 5 GETs", three(5, unavailable, false)},
	{"the addresses change, TTL 1 s, the old server still runs", moves},
	{"GET after a 503", attempts(http.MethodGet, http.StatusServiceUnavailable, "", false)},
	{"GET after a 500", attempts(http.MethodGet, http.StatusInternalServerError, "", false)},
	{"POST after a 503", attempts(http.MethodPost, http.StatusServiceUnavailable, "", false)},
	{"POST with `Idempotency-Key` after a 503", attempts(http.MethodPost, http.StatusServiceUnavailable, "key", false)},
	{"PUT of a stream without `GetBody` after a 503", attempts(http.MethodPut, http.StatusServiceUnavailable, "", true)},
	{"always 503", func(newClient func(settings) *http.Client) string {
		s := start(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { unavailable(w) }))
		defer s.Close()
		begin := time.Now()
		rsp, err := newClient(settings{}).Get(s.URL) //nolint:noctx // it ends
		if err != nil {
			return "an error " + after(begin)
		}
		defer rsp.Body.Close()
		return "status " + fmt.Sprint(rsp.StatusCode) + " " + after(begin)
	}},
	{"gzip", func(newClient func(settings) *http.Client) string {
		s := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "gzip" {
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, "hello")
			_ = z.Close()
		}))
		defer s.Close()
		if text, err := get(newClient(settings{}), s.URL); err != nil || text != "hello" {
			return "–"
		}
		return "asked for and decompressed"
	}},
	{"protocol of an https server with HTTP/2", func(newClient func(settings) *http.Client) string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
		s.EnableHTTP2 = true
		s.StartTLS()
		defer s.Close()
		roots := x509.NewCertPool()
		roots.AddCert(s.Certificate())
		text, err := get(newClient(settings{roots: roots}), s.URL)
		return orError(text, err)
	}},
	{"`HTTP_PROXY`", func(newClient func(settings) *http.Client) string {
		text, err := get(newClient(settings{}), "http://"+proxied+"/")
		return orError(text, err)
	}},
}

func unavailable(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }

// three returns a function that sends GET requests to a name with three addresses. The first one
// refuses connections, or responds with bad.
func three(requests int, bad func(http.ResponseWriter), refuses bool) func(func(settings) *http.Client) string {
	return func(newClient func(settings) *http.Client) string {
		var served [3]atomic.Int64
		var addrs []string
		// The first server chooses a port, which the others use at their own addresses.
		port := "0"
		for i := range served {
			addr := fmt.Sprintf("127.0.0.%d:%s", i+1, port)
			if i == 0 && refuses {
				addr = refusing(addr)
			} else {
				s := startAt(addr, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if served[i].Add(1); i == 0 {
						bad(w)
					}
				}))
				defer s.Close()
				addr = s.Listener.Addr().String()
			}
			host, p, _ := net.SplitHostPort(addr)
			port = p
			addrs = append(addrs, host)
		}
		n := newNames(addrs...)
		defer n.close()
		c := newClient(settings{names: n})
		failed := 0
		begin := time.Now()
		for range requests {
			rsp, err := c.Get("http://web.test:" + port + "/") //nolint:noctx // it ends
			if err != nil || rsp.StatusCode != http.StatusOK {
				failed++
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, rsp.Body)
				_ = rsp.Body.Close()
			}
		}
		return fmt.Sprintf("%d failed %s; requests by address: %d, %d, %d",
			failed, after(begin), served[0].Load(), served[1].Load(), served[2].Load())
	}
}

// moves changes a name's address while a client sends requests.
func moves(newClient func(settings) *http.Client) string {
	name := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	first := startAt("127.0.0.1:0", name("old"))
	defer first.Close()
	_, port, _ := net.SplitHostPort(first.Listener.Addr().String())
	second := startAt("127.0.0.2:"+port, name("new"))
	defer second.Close()
	n := newNames("127.0.0.1")
	defer n.close()
	c := newClient(settings{names: n})
	var changed time.Time
	// The address changes after 3 s, and the client then gets 20 s to notice it.
	for begin := time.Now(); changed.IsZero() || time.Since(changed) < 20*time.Second; time.Sleep(100 * time.Millisecond) {
		text, err := get(c, "http://web.test:"+port+"/")
		switch {
		case err != nil:
			return err.Error()
		case text == "new":
			return "uses the new one " + after(changed)
		case changed.IsZero() && time.Since(begin) > 3*time.Second:
			n.set("127.0.0.2")
			changed = time.Now()
		}
	}
	return "uses the old one for 20 s"
}

// attempts returns a function that reports how often a client sends a request whose first response
// has the given status. key is the request's Idempotency-Key, and stream selects a body that cannot
// be read again.
func attempts(method string, status int, key string, stream bool) func(func(settings) *http.Client) string {
	return func(newClient func(settings) *http.Client) string {
		var sent, complete atomic.Int64
		const text = "the body of the request"
		s := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err == nil && string(body) == text {
				complete.Add(1)
			}
			if sent.Add(1) == 1 {
				w.WriteHeader(status)
			}
		}))
		defer s.Close()
		var body io.Reader = strings.NewReader(text)
		switch {
		case method == http.MethodGet:
			body = http.NoBody
		case stream:
			// For a MultiReader, NewRequest sets no GetBody.
			body = io.MultiReader(bytes.NewBufferString(text))
		}
		req, err := http.NewRequest(method, s.URL, body) //nolint:noctx // it ends
		if err != nil {
			log.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		begin := time.Now()
		rsp, err := newClient(settings{}).Do(req)
		if err != nil {
			return err.Error()
		}
		_ = rsp.Body.Close()
		result := fmt.Sprintf("sent %d×, status %d %s", sent.Load(), rsp.StatusCode, after(begin))
		if body != http.NoBody && complete.Load() != sent.Load() {
			result += fmt.Sprintf(", the whole body %d×", complete.Load())
		}
		return result
	}
}

// after describes the time since start.
func after(start time.Time) string {
	d := time.Since(start)
	if d < time.Second/2 {
		return "within 0.5 s"
	}
	return fmt.Sprintf("after %.0f s", d.Seconds())
}

// orError returns text, or the text of err if that is not nil.
func orError(text string, err error) string {
	if err != nil {
		return err.Error()
	}
	return text
}

// get sends a GET request and returns the response body.
func get(c *http.Client, url string) (string, error) {
	rsp, err := c.Get(url) //nolint:noctx // it ends
	if err != nil {
		return "", err
	}
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	return string(text), err
}
