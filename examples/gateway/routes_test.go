package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// send returns the answer, with its body read.
func (s *started) send(t *testing.T, method, path, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.clients+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer sesame")
	rsp, err := s.client.Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp, string(text)
}

// replace puts another text into the file of the running gateway.
func (s *started) replace(t *testing.T, old, by string) {
	t.Helper()
	text, err := os.ReadFile(s.profile)
	require.NoError(t, err)
	require.Contains(t, string(text), old)
	s.write(t, strings.ReplaceAll(string(text), old, by))
}

// write puts a text in the place of the file.
func (s *started) write(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(s.profile+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(s.profile+".new", s.profile))
}

// What fails for all endpoints alike is the route's own fault, and no reason to
// refuse what is well.
func TestFailingRouteDoesNotAffectOthers(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/books/broken" {
			http.Error(w, "broken", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(backend.Close)
	at := ":80=" + backend.Listener.Addr().String()
	s := start(t, "-backend", "books-v1.example"+at, "-backend", "books-v2.example"+at, "-backend", "books-next.example"+at)
	for range 300 { // so that each version gets its share
		rsp, _ := s.send(t, http.MethodGet, "/books/broken", "")
		require.Equal(t, http.StatusServiceUnavailable, rsp.StatusCode)
	}
	for range 20 {
		rsp, body := s.send(t, http.MethodGet, "/books", "")
		require.Equal(t, http.StatusOK, rsp.StatusCode, body)
	}
}

func TestRouteHeaders(t *testing.T) {
	s := start(t)
	rsp, body := s.send(t, http.MethodGet, "/books", "")
	assert.Contains(t, body, `"from":"gateway"`)
	assert.Equal(t, "max-age=5", rsp.Header.Get("Cache-Control"))
	assert.Empty(t, rsp.Header.Get("X-Shelf"))
	for _, path := range []string{"/books", "/books/flaky", "/books/shaky"} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			rsp, _ = s.send(t, method, path, "")
			assert.Empty(t, rsp.Header.Get("X-Shelf"), "%s %s", method, path)
		}
	}
}

func TestRedirect(t *testing.T) {
	s := start(t)
	rsp, _ := s.send(t, http.MethodGet, "/books/v1/emma?page=2", "")
	assert.Equal(t, http.StatusPermanentRedirect, rsp.StatusCode)
	assert.Equal(t, s.clients+"/books/emma?page=2", rsp.Header.Get("Location"))
	rsp, _ = s.send(t, http.MethodGet, "/books/v10", "")
	assert.Equal(t, http.StatusNotFound, rsp.StatusCode, "another segment, and no such book")
}

// Half of the requests fail until the time of the fault is over.
func TestFaultEnds(t *testing.T) {
	s := start(t)
	s.replace(t, "  - {share: 20%, delay: 300ms, ttl: 10m}\n", "")
	until(t, func() bool { // the file was read
		failed := 0
		for range 200 {
			if rsp, _ := s.send(t, http.MethodGet, "/books/shaky", ""); rsp.StatusCode == http.StatusServiceUnavailable {
				failed++
			}
		}
		return failed >= 60 && failed <= 140 // more than five standard deviations
	})

	fault := "share: 50%, status: 503, ttl: 10m"
	for ttl := 2 * time.Second; ; ttl *= 2 { // a machine that is slow may see nothing of the shorter ones
		require.Less(t, ttl, 2*time.Minute)
		before := fault
		fault = fmt.Sprintf("share: 100%%, status: 599, ttl: %v", ttl)
		s.replace(t, before, fault)
		if s.failsAtLast(t, 599) {
			break
		}
	}
	until(t, func() bool { return s.shaky(t, 5, http.StatusOK) })
}

// shaky reports whether so many requests in a row get this status.
func (s *started) shaky(t *testing.T, n, status int) bool {
	t.Helper()
	for range n {
		if rsp, _ := s.send(t, http.MethodGet, "/books/shaky", ""); rsp.StatusCode != status {
			return false
		}
	}
	return true
}

// failsAtLast waits until requests fail with this status, or have ceased to fail
// at all.
func (s *started) failsAtLast(t *testing.T, status int) (failed bool) {
	t.Helper()
	until(t, func() bool {
		failed = s.shaky(t, 1, status)
		return failed || s.shaky(t, 40, http.StatusOK) // of which half would fail otherwise
	})
	return failed
}

// The next version gets copies of new books, but not of large ones.
func TestMirror(t *testing.T) {
	copies := make(chan string, 10)
	next := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		copies <- r.Method + " " + r.URL.Path + " for " + r.Header.Get("Mirrored-From") + ": " + string(body)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer next.Close()
	args := []string{"-backend", "books-next.example:80=" + next.Listener.Addr().String()}
	for _, version := range []string{"v1", "v2"} {
		srv := httptest.NewServer(books(version))
		defer srv.Close()
		args = append(args, "-backend", "books-"+version+".example:80="+srv.Listener.Addr().String())
	}
	s := start(t, args...)
	rsp, body := s.send(t, http.MethodPost, "/books", strings.Repeat("x", 5000))
	assert.Equal(t, http.StatusCreated, rsp.StatusCode)
	assert.Contains(t, body, `"bytes":5000`)
	rsp, body = s.send(t, http.MethodPost, "/books", "Persuasion")
	assert.Equal(t, http.StatusCreated, rsp.StatusCode)
	assert.Contains(t, body, `"bytes":10`)
	select {
	case one := <-copies:
		assert.Equal(t, "POST /books for books.example:80: Persuasion", one)
	case <-time.After(time.Minute):
		assert.Fail(t, "there is no copy")
	}
	assert.Empty(t, copies)
	_, page := s.get(t, http.MethodGet, s.admin+"/")
	assert.Regexp(t, `mirror[^\n]*share=1`, page)
}
