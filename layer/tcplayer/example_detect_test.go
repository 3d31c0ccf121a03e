package tcplayer_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// saying is a Server that responds with its name and the bytes read.
func saying(what string) tcplayer.Server {
	return layer.Func[net.Conn, tcplayer.ByteCount](func(_ context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		defer conn.Close()
		got, err := io.ReadAll(conn)
		fmt.Fprintf(conn, "%s, %d bytes for %v", what, len(got), conn.LocalAddr())
		return tcplayer.ByteCount{Sent: int64(len(got))}, err
	})
}

// started serves connections until stop, which waits for all of them.
func started(svc tcplayer.Server) (addr string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- tcplayer.Serve(ctx, l, svc) }()
	return l.Addr().String(), func() {
		end()
		<-served
	}
}

// A proxy finds the original destination of a connection, whether it is TLS for
// this process, and the protocol inside. FixedDst has one destination for all
// connections. With iptables rules, use SOOriginalDst instead, on a listener
// without MPTCP.
func ExampleDetect() {
	db := netip.MustParseAddrPort("10.0.0.7:5432")
	detect := tcplayer.Detect(tcplayer.Protocols{
		HTTP1:  saying("HTTP/1"),
		HTTP2:  saying("HTTP/2"),
		Opaque: saying("opaque"),
	})
	addr, stop := started(tcplayer.Transparent(tcplayer.FixedDst(db), detect, nil))
	defer stop()

	fmt.Println(ask(addr, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"))
	fmt.Println(ask(addr, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	fmt.Println(ask(addr, "*1\r\n$4\r\nPING\r\n"))
	// Output:
	// HTTP/1, 29 bytes for 10.0.0.7:5432
	// HTTP/2, 24 bytes for 10.0.0.7:5432
	// opaque, 14 bytes for 10.0.0.7:5432
}

// TLS with another name is forwarded encrypted.
func ExampleDetectTLS() {
	cfg := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, io.EOF }}
	pass := layer.Func[net.Conn, tcplayer.ByteCount](func(_ context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		fmt.Println("TLS for another name")
		return tcplayer.ByteCount{}, conn.Close()
	})
	addr, stop := started(tcplayer.DetectTLS(cfg, tcplayer.MatchServerName("web.default"),
		tcplayer.TLSServers{Passthrough: pass, Cleartext: saying("in clear")}))

	_, err := tls.Dial("tcp", addr, &tls.Config{ServerName: "db.default"})
	fmt.Println("the client was served:", err == nil)
	answer := ask(addr, "hello")
	fmt.Println(answer[:len("in clear, 5 bytes")])
	stop()
	// Output:
	// TLS for another name
	// the client was served: false
	// in clear, 5 bytes
}

// A load balancer sends the address of the client in the PROXY protocol. The
// server sees the connection without it.
func ExampleProxyProtocol() {
	from := layer.Func[net.Conn, tcplayer.ByteCount](func(_ context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		fmt.Println(conn.RemoteAddr(), "asked for", conn.LocalAddr())
		return tcplayer.ByteCount{}, conn.Close()
	})
	addr, stop := started(tcplayer.Transparent(tcplayer.ProxyProtocol(), from, nil))
	ask(addr, "PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n")
	stop()
	// Output:
	// 192.0.2.1:56324 asked for 198.51.100.1:443
}
