package tap

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// serveOn starts Serve, and returns its address.
func serveOn(t *testing.T, addr string, reg *Registry, opts ...ServerOption) (at string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	where, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		ended <- Serve(ctx, addr, reg, append(opts, WithOnListen(func(a net.Addr) { where <- a }))...)
		close(ended)
	}()
	stop = func() error {
		cancel()
		return <-ended
	}
	t.Cleanup(func() { _ = stop() })
	select {
	case a := <-where:
		return a.String(), stop
	case err := <-ended:
		require.NoError(t, err)
	}
	return "", stop
}

func TestServe(t *testing.T) {
	reg := new(Registry)
	for name, addr := range map[string]string{
		"127.0.0.1": "127.0.0.1:0", "localhost": "localhost:0", "a socket": "unix:" + filepath.Join(t.TempDir(), "tap"),
	} {
		t.Run(name, func(t *testing.T) {
			at, stop := serveOn(t, addr, reg)
			if name == "a socket" {
				at = addr
			} else {
				at = "passthrough:///" + at
			}
			conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			stream, err := pb.NewTapClient(conn).Observe(t.Context(), all(2))
			require.NoError(t, err)
			_, err = stream.Header()
			require.NoError(t, err)
			send(t, stand(reg, respond("x")), get("/"))
			require.NotNil(t, recv(t, stream).RequestInit)
			require.NoError(t, stop())
			_, err = wireEnd(t, stream)
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.ErrorContains(t, err, "shutting down", "it is told, and not cut off when patience is over")
			require.Nil(t, reg.active.Load())
		})
	}
}

func TestServeRejects(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	creds := WithCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}))
	file, live := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "tap")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	other, err := net.Listen("unix", live)
	require.NoError(t, err)
	defer other.Close()
	for name, tt := range map[string]struct {
		addr string
		opts []ServerOption
		want string
	}{
		"every address": {":4190", nil, "tap: serve on :4190: other machines can reach this address: " +
			"listen on 127.0.0.1, or name the clients by WithCredentials and WithAllowedIdentities"},
		"any":                 {"0.0.0.0:0", nil, "other machines can reach this address"},
		"any of IPv6":         {"[::]:0", nil, "other machines can reach this address"},
		"another address":     {"192.0.2.1:4190", nil, "other machines can reach this address"},
		"a name":              {"example.com:4190", nil, "other machines can reach this address"},
		"names alone":         {"0.0.0.0:0", []ServerOption{WithAllowedIdentities("x")}, "WithAllowedIdentities needs WithCredentials"},
		"credentials alone":   {"0.0.0.0:0", []ServerOption{creds}, "WithCredentials needs WithAllowedIdentities"},
		"a socket, no path":   {"unix:", nil, "tap: serve on unix:: the path of the socket is missing: unix:/run/web/tap.sock"},
		"not an address":      {"4190", nil, "the address must be host:port, such as 127.0.0.1:4190"},
		"a file, no socket":   {"unix:" + file, nil, "address already in use"},
		"a socket, taken":     {"unix:" + live, nil, "address already in use"},
		"taken":               {taken.Addr().String(), nil, "address already in use"},
		"not on this machine": {"192.0.2.1:0", []ServerOption{WithAllowRemote()}, "cannot assign requested address"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, Serve(t.Context(), tt.addr, nil, tt.opts...), tt.want)
		})
	}
}

// Serve replaces the socket of a process that has crashed.
func TestServeStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tap")
	crashed, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	crashed.SetUnlinkOnClose(false)
	require.NoError(t, crashed.Close())
	_, stop := serveOn(t, "unix:"+path, nil)
	require.NoError(t, stop())
}

func TestServeRemoteClients(t *testing.T) {
	ca := newAuthority(t)
	creds := WithCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, dnsName("proxy"))},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.pool, MinVersion: tls.VersionTLS13,
	}))
	at, _ := serveOn(t, "0.0.0.0:0", nil, creds, WithAllowedIdentities("ops"))
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	for name, want := range map[string]codes.Code{"ops": codes.OK, "web": codes.Unauthenticated} {
		conn := dial(t, net.JoinHostPort("127.0.0.1", port), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: ca.pool, Certificates: []tls.Certificate{ca.issue(t, dnsName(name))}, MinVersion: tls.VersionTLS13,
		})))
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := pb.NewTapClient(conn).Observe(ctx, all(1))
		require.NoError(t, err)
		if want == codes.OK {
			md, err := stream.Header()
			require.NoError(t, err)
			require.NotNil(t, md)
		} else {
			_, err = stream.Recv()
			require.Equal(t, want, status.Code(err))
		}
		cancel()
	}
}

func TestServeEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error)
	go func() { done <- Serve(ctx, "127.0.0.1:0", nil) }()
	select {
	case <-done: // its text depends on the operating system
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
}

// Serve ends although Describe waits for a lock.
func TestServeEndsDuringDescribe(t *testing.T) {
	t.Parallel()
	asked, goOn := make(chan struct{}), make(chan struct{})
	at, stop := serveOn(t, "127.0.0.1:0", nil, WithDescribe(func() layer.Node {
		close(asked)
		<-goOn
		return layer.Node{}
	}))
	conn := dial(t, at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	answer := make(chan error)
	go func() {
		_, err := tappb.NewTapClient(conn).Describe(t.Context(), &tappb.DescribeRequest{})
		answer <- err
	}()
	<-asked
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		close(goOn)
		t.Fatal("it does not end")
	}
	require.Equal(t, codes.Unavailable, status.Code(<-answer))
	close(goOn)
}
