package tap_test

import (
	"context"
	"fmt"
	"iter"
	"log"
	"net"
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
)

// verse is how tap reads a protocol where a request is a path and a response
// is some text. For net/http there is httplayer.HTTP.
type verse struct {
	tap.BaseAccessor[string, string]
}

func (verse) Method(string) string                { return "GET" }
func (verse) Scheme(string) string                { return "http" }
func (verse) Authority(string) string             { return "verse.example" }
func (verse) Path(path string) string             { return path }
func (verse) Query(string) string                 { return "" }
func (verse) Source(string) netip.AddrPort        { return netip.MustParseAddrPort("10.0.0.9:41000") }
func (verse) RequestHeader(string) layer.Header   { return none{} }
func (verse) Status(string) int                   { return 200 }
func (verse) ResponseHeader(string) layer.Header  { return none{} }
func (verse) ResponseTrailer(string) layer.Header { return none{} }
func (verse) ObserveResponse(ctx context.Context, rsp string, o layer.Observer) string {
	o.Data(len(rsp))
	return layer.AtReturn(ctx, rsp, o)
}

type none struct{}

func (none) Get(string) string              { return "" }
func (none) Values(string) []string         { return nil }
func (none) All() iter.Seq2[string, string] { return func(func(string, string) bool) {} }

func endpoint(_ context.Context, path string) (string, error) { return "you asked for " + path, nil }

// A process shows its requests: a layer at each endpoint, and a gRPC server for
// the watchers.
func Example() {
	registry := new(tap.Registry)
	svc := tap.Layer(registry, verse{}, tap.Outbound,
		tap.WithDestination(netip.MustParseAddrPort("10.0.0.1:80"), map[string]string{"pod": "verse-1"}),
	)(layer.Func[string, string](endpoint))

	server := grpc.NewServer()
	tap.NewServer(registry).Register(server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	// The watcher, which may be another process.
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	// Traffic, until the watcher has its events.
	ctx, cancel := context.WithCancel(context.Background())
	traffic := make(chan struct{})
	go func() {
		defer close(traffic)
		for ctx.Err() == nil {
			_, _ = svc.Call(ctx, "/health")
			_, _ = svc.Call(ctx, "/poem")
		}
	}()

	request := &pb.ObserveRequest{Limit: 1, Match: match.All(
		match.DestinationLabel("pod", "verse-1"), match.Not(match.Path("/health")),
	)}
	for e, err := range tap.Observe(ctx, conn, request) {
		switch {
		case err != nil:
			fmt.Println(err)
		case e.RequestInit != nil:
			fmt.Println("req", e.Direction, e.Source, e.Destination, e.RequestInit.Method, e.RequestInit.Path)
		case e.ResponseInit != nil:
			fmt.Println("rsp", e.ResponseInit.Status)
		case e.ResponseEnd != nil:
			fmt.Println("end", e.ResponseEnd.Bytes, "bytes")
		}
	}
	cancel()
	<-traffic
	// Output:
	// req outbound 10.0.0.9:41000 10.0.0.1:80 GET /poem
	// rsp 200
	// end 19 bytes
}

// A tap in a stack costs nothing without watchers.
func ExampleLayer() {
	registry := new(tap.Registry)
	svc := layer.NewStack[string, string]().
		Limit(8).
		With("tap", tap.Layer(registry, verse{}, tap.Outbound)).
		Service(layer.Func[string, string](endpoint))
	rsp, _ := svc.Call(context.Background(), "/poem")
	fmt.Println(rsp)
	fmt.Print(layer.Describe(svc))
	// Output:
	// you asked for /poem
	// limit      in_flight=0 max=8
	// tap        watching=0 dropped=0
	// layer.Func
}

// The process decides which fields it withholds, and the watcher cannot change
// it.
func ExampleNewRegistry() {
	registry := tap.NewRegistry(
		tap.WithCapacity(10, 0),                 // ten watchers, with the usual buffer
		tap.WithRedacted("x-api-key"),           // beside the four that are always secret
		tap.WithRevealed("proxy-authorization"), // but not this one
	)
	fmt.Print(registry.Describe())
	// Output:
	// tap        watching=0 dropped=0
}

// A watcher of another machine proves its identity by mutual TLS. The
// credentials of the gRPC server must ask for client certificates.
func ExampleWithAllowedIdentities() {
	server := tap.NewServer(new(tap.Registry), tap.WithAllowedIdentities("tap.example", "spiffe://example/ns/ops/sa/tap"))
	defer server.Shutdown()
	fmt.Printf("%T", server)
	// Output: *tap.Server
}
