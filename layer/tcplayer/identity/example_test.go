package identity_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// someCA is a CA in this process, and a connection to it.
func someCA() (authority *ca.Authority, conn *grpc.ClientConn, stop func()) {
	authority, err := ca.New("cluster.local")
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	ca.Register(server, authority, func(context.Context, string, []byte) error { return nil })
	go server.Serve(l)
	conn, err = grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	return authority, conn, func() { conn.Close(); server.Stop() }
}

// certified is name, with a certificate.
func certified(ctx context.Context, name string, authority *ca.Authority, conn *grpc.ClientConn) *identity.Identity {
	key, csr, err := identity.Request(name)
	if err != nil {
		panic(err)
	}
	i, err := identity.New(identity.Config{
		Name: name, Key: key, CSR: csr, Roots: authority.TrustAnchors(),
		Token: func() ([]byte, error) { return []byte("token"), nil },
	})
	if err != nil {
		panic(err)
	}
	go i.Run(ctx, conn)
	if err := i.Ready(ctx); err != nil {
		panic(err)
	}
	return i
}

// Two proxies prove their names to each other before they send data.
func Example() {
	authority, conn, stop := someCA()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	web := certified(ctx, "web.default.serviceaccount.identity.linkerd.cluster.local", authority, conn)
	db := certified(ctx, "db.default.serviceaccount.identity.linkerd.cluster.local", authority, conn)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	greet := layer.Func[net.Conn, tcplayer.ByteCount](func(_ context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		state, _ := tcplayer.TLSState(conn)
		client, _ := identity.PeerIdentity(state)
		fmt.Fprint(conn, "hello ", client)
		return tcplayer.ByteCount{}, conn.Close()
	})
	serving, end := context.WithCancel(ctx)
	served := make(chan error)
	go func() {
		served <- tcplayer.Serve(serving, l,
			tcplayer.DetectTLS(db.Server(), tcplayer.MatchServerName(db.ServerName()), tcplayer.TLSServers{Terminate: greet}))
	}()

	for _, expected := range []string{db.Name(), "cache.default.serviceaccount.identity.linkerd.cluster.local"} {
		endpoint := tcplayer.NewEndpoint(ctx, l.Addr().String(),
			tcplayer.WithTLS(web.Client(db.ServerName(), expected)), tcplayer.WithConnectTimeout(time.Minute))
		conn, err := endpoint.Call(ctx, tcplayer.Request{})
		if err != nil {
			fmt.Println("refused:", layer.Poll(endpoint) != nil)
			continue
		}
		answer, _ := io.ReadAll(conn)
		fmt.Println(string(answer))
		conn.Close()
	}
	end()
	<-served
	// Output:
	// hello web.default.serviceaccount.identity.linkerd.cluster.local
	// refused: true
}

// The error of another peer has both names.
func ExampleIdentity_Client() {
	authority, conn, stop := someCA()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	web, db := certified(ctx, "web.cluster.local", authority, conn), certified(ctx, "db.cluster.local", authority, conn)

	l, err := tls.Listen("tcp", "127.0.0.1:0", db.Server())
	if err != nil {
		panic(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	_, err = tls.Dial("tcp", l.Addr().String(), web.Client("cache.cluster.local", "cache.cluster.local"))
	fmt.Println(err)
	// Output:
	// identity: peer not verified: expected cache.cluster.local, seen db.cluster.local
}
