// Package restarttest provides servers that end their connections while clients use them, to test what
// clients and proxies then lose.
package restarttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

const (
	patience = time.Minute
	workers  = 8
)

// GRPC runs a gRPC server with the service grpc.health.v1.Health until the test ends. It ends each
// connection after about 20 ms, by GOAWAY.
func GRPC(t testing.TB) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(grpc.KeepaliveParams(keepalive.ServerParameters{
		MaxConnectionAge: 20 * time.Millisecond, MaxConnectionAgeGrace: patience,
	}))
	grpc_health_v1.RegisterHealthServer(srv, health.NewServer())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return l.Addr().String()
}

// LoadGRPC sends unary calls to a server of [GRPC], by a client that connects to addr and does not
// retry. No call may fail.
func LoadGRPC(t testing.TB, addr, authority string) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithAuthority(authority), grpc.WithDisableRetry(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	Load(t, 400, func(ctx context.Context) error {
		_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err
	})
}

// Load calls call from several workers, count times in each. No call may fail.
func Load(t testing.TB, count int, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var wg sync.WaitGroup
	// There is room for all results, so that no worker waits.
	errs := make(chan error, workers*count)
	for range workers {
		wg.Go(func() {
			for range count {
				errs <- call(ctx)
			}
		})
	}
	wg.Wait()
	close(errs)
	failed := 0
	for err := range errs {
		if err == nil {
			continue
		}
		// Three errors are enough to understand a failure.
		if failed++; failed <= 3 {
			t.Log(err)
		}
	}
	assert.Zero(t, failed, "of %d requests", workers*count)
}

// HTTP is a net/http server for HTTP/1.1 and HTTP/2 in cleartext, which responds with the request body.
type HTTP struct {
	Addr string

	listener net.Listener // the successors of a server use the same socket
	srv      *http.Server
	served   chan error
}

// NewHTTP starts a server that runs until the test ends.
func NewHTTP(t testing.TB) *HTTP {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &HTTP{Addr: l.Addr().String(), listener: l}
	s.start(t)
	t.Cleanup(func() {
		_ = l.Close()
		_ = s.srv.Close()
		<-s.served //nolint:errcheck // that of a closed server
	})
	return s
}

// start starts a server on the address of s, in place of one that was stopped.
func (s *HTTP) start(t testing.TB) {
	t.Helper()
	// Each server closes its own copy of the socket, so that the port stays open for the next one.
	file, err := s.listener.(*net.TCPListener).File() //nolint:errcheck,forcetypeassert // the type is that of net.Listen
	require.NoError(t, err)
	defer file.Close()
	listener, err := net.FileListener(file)
	require.NoError(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(echo), Protocols: new(http.Protocols), ReadHeaderTimeout: patience}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	s.srv = srv
	s.served = served
	go func() { served <- srv.Serve(listener) }()
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
	}
	_, _ = w.Write(body)
}

// Restart replaces the server by another one, and shuts it down gracefully.
func (s *HTTP) Restart(t testing.TB) {
	t.Helper()
	old := s.srv
	served := s.served
	s.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, old.Shutdown(ctx))
	<-served //nolint:errcheck // that of a closed server
}

// Post returns a function that sends a request with a body by c, and expects the body in the response.
func Post(c *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		want := strings.Repeat("body", 100)
		body := io.MultiReader(strings.NewReader(want)) // so that the client cannot send it again
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
		if err != nil {
			return err
		}
		rsp, err := c.Do(req)
		if err != nil {
			return err
		}
		defer rsp.Body.Close()
		text, err := io.ReadAll(rsp.Body)
		if err == nil && (rsp.StatusCode != http.StatusOK || string(text) != want) {
			err = fmt.Errorf("%s: %.100q", rsp.Status, text)
		}
		return err
	}
}

// LoadDuringRestarts calls post while the server is restarted several times. No call may fail. The server
// must get the requests over HTTP/2.
func (s *HTTP) LoadDuringRestarts(t testing.TB, post func(context.Context) error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		Load(t, 200, post)
	}()
	for range 10 {
		s.Restart(t)
	}
	<-done
}

// LoadBetweenRestarts calls post before and after each of several restarts. No call may fail. While the
// server is restarted, no request is on its way, because in HTTP/1.1 nothing tells that a request's
// bytes have been lost.
func (s *HTTP) LoadBetweenRestarts(t testing.TB, post func(context.Context) error) {
	t.Helper()
	for range 5 {
		Load(t, 20, post)
		s.Restart(t)
		s.awaitEnds(t)
	}
	Load(t, 20, post)
}

// awaitEnds waits until the clients have noticed that all connections to s are gone, on systems
// where this can be observed.
func (s *HTTP) awaitEnds(t testing.TB) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.Addr)
	require.NoError(t, err)
	var number int
	_, err = fmt.Sscan(port, &number)
	require.NoError(t, err)
	open := fmt.Sprintf("0100007F:%04X 01 ", number) // the remote address, and the state ESTABLISHED
	require.Eventually(t, func() bool {
		table, err := os.ReadFile("/proc/net/tcp")
		return errors.Is(err, os.ErrNotExist) || err == nil && !strings.Contains(string(table), open)
	}, patience, time.Millisecond)
}
