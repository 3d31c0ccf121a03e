package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is wrong from the start is an error that says what to do.
func TestInvalidProfileAtStart(t *testing.T) {
	const shelves = "target: shelves.example\nroutes: []\n"
	for name, c := range map[string]struct {
		files map[string]string
		path  string
		want  []string
	}{
		"none":           {nil, "none.yaml", []string{"profile: stat ", "or set -profile"}},
		"bad":            {map[string]string{"a.yaml": "target: books.example\nroute: []\n"}, "a.yaml", []string{"invalid profile:\n", "a.yaml:2:1: "}},
		"others":         {map[string]string{"a.yaml": shelves}, "a.yaml", []string{"must have a profile for books.example:80; it has profiles for [shelves.example]"}},
		"empty dir":      {nil, ".", []string{"must have a profile for books.example:80"}},
		"dir of others":  {map[string]string{"a.yaml": shelves}, ".", []string{"must have a profile for books.example:80; it has profiles for [shelves.example]"}},
		"dir with a bad": {map[string]string{"a.yaml": profileText(t), "b.json": "nonsense"}, ".", []string{"invalid profile:\n", "b.json:1:"}},
		"no backend": {
			map[string]string{"a.yaml": "target: books.example\nroutes: []\n"}, ".",
			[]string{"sends requests to books.example:80, which has no backend (backends: books-next.example:80, "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			err := run(t.Context(), []string{"-profile", filepath.Join(dir, c.path)}, io.Discard, io.Discard)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func profileText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("gateway.yaml")
	require.NoError(t, err)
	return string(text)
}

// Of several files the one for the port holds, and others may be beside them.
func TestProfileDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "target: books.example\nroutes: []\n", "b.yaml": profileText(t), "c.txt": "nonsense", ".d.yaml": "nonsense",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	s := start(t, "-profile", dir)
	require.Contains(t, []string{"v1", "v2"}, s.version(t))
}

// Each target of the file must have a backend.
func TestMissingBackends(t *testing.T) {
	const (
		v1, v2 = "books-v1.example:80=127.0.0.1:1", "books-v2.example:80=127.0.0.1:1"
		advice = "-backend books-next.example:80=ip:port for each, or change the file"
	)
	for args, want := range map[string]string{
		"books:80=127.0.0.1:1": "gateway.yaml sends requests to books-next.example:80 and books-v1.example:80 and books-v2.example:80," +
			" which has no backend (backends: books:80): set " + advice,
		v1 + " " + v2:                   "sends requests to books-next.example:80, which has no backend (backends: books-v1.example:80, books-v2.example:80)",
		"books-v1.example=127.0.0.1:1":  `"books-v1.example=127.0.0.1:1": must be name:port=ip:port; see -help`,
		"=127.0.0.1:1":                  `"=127.0.0.1:1": must be name:port=ip:port; see -help`,
		"books-v1.example:80=localhost": `address "localhost": not an IP address with a port`,
	} {
		line := []string{"-profile", "gateway.yaml"}
		for b := range strings.FieldsSeq(args) {
			line = append(line, "-backend", b)
		}
		require.ErrorContains(t, run(t.Context(), line, io.Discard, io.Discard), want, args)
	}
}

// Where its address is taken the gateway says so, and nothing else.
func TestTakenAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	log := &said{}
	err = run(t.Context(), []string{"-profile", "gateway.yaml", "-listen", "127.0.0.1:0", "-admin", l.Addr().String()}, io.Discard, log)
	require.ErrorContains(t, err, "gateway: admin: listen tcp "+l.Addr().String())
	require.Empty(t, log.String())
}

// A request that is on its way when the gateway is told to end is served to its
// end, and sent again if its route says so.
func TestRetryDuringShutdown(t *testing.T) {
	var asked atomic.Int64
	entered, ending := make(chan struct{}), make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			close(entered)
			<-ending
			http.Error(w, "not this time", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(backend.Close)
	at := ":80=" + backend.Listener.Addr().String()
	s := start(t, "-backend", "books-v1.example"+at, "-backend", "books-v2.example"+at, "-backend", "books-next.example"+at)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.clients+"/books/flaky", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer sesame")
	answered := make(chan string, 1)
	go func() {
		rsp, err := s.client.Do(req)
		if err != nil {
			answered <- err.Error()
			return
		}
		rsp.Body.Close()
		answered <- rsp.Status
	}()
	<-entered
	s.end()
	until(t, func() bool { // connections are rejected
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.clients, "http://"))
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(ending)
	require.Equal(t, "200 OK", <-answered)
	require.EqualValues(t, 2, asked.Load())
}
