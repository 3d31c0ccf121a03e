package sidecar_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// replay is a controller that sends recorded responses of examples/destination: the first one
// immediately, and the others when changed is closed.
type replay struct {
	calls   []recorded
	changed chan struct{}
}

type recorded struct {
	Method    string
	Request   json.RawMessage
	Responses []json.RawMessage
}

func newReplay(t *testing.T, ports *strings.Replacer) *replay {
	t.Helper()
	files, err := filepath.Glob("../../destination/controller/testdata/conversations/*.json")
	require.NoError(t, err)
	r := &replay{changed: make(chan struct{})}
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var c recorded
		require.NoError(t, json.Unmarshal([]byte(ports.Replace(string(data))), &c))
		r.calls = append(r.calls, c)
	}
	require.NotEmpty(t, r.calls)
	return r
}

// serve handles all methods. Calls with the same path have the same request.
func (r *replay) serve(_ any, stream grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(stream)
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(name[1:], "/", ".")))
	if err != nil {
		return err
	}
	method := found.(protoreflect.MethodDescriptor)
	req, err := newMessage(method.Input())
	if err != nil {
		return err
	}
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	for _, c := range r.calls {
		want, err := newMessage(method.Input())
		if err != nil {
			return err
		}
		if c.Method != name || protojson.Unmarshal(c.Request, want) != nil || pathOf(want) != pathOf(req) {
			continue
		}
		for i, text := range c.Responses {
			if i == 1 {
				select {
				case <-r.changed:
				case <-stream.Context().Done():
					return nil
				}
			}
			rsp, err := newMessage(method.Output())
			if err == nil {
				err = protojson.Unmarshal(text, rsp)
			}
			if err == nil {
				err = stream.SendMsg(rsp)
			}
			if err != nil {
				return err
			}
		}
		<-stream.Context().Done()
		return nil
	}
	return status.Error(codes.InvalidArgument, "not recorded")
}

func newMessage(d protoreflect.MessageDescriptor) (proto.Message, error) {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, err
	}
	return mt.New().Interface(), nil
}

// pathOf returns the path in a destination API request, or "".
func pathOf(m proto.Message) string {
	if p, ok := m.(interface{ GetPath() string }); ok {
		return p.GetPath()
	}
	return ""
}

// The proxy follows the recorded responses of each streaming method.
func TestConversations(t *testing.T) {
	port := func(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }
	app := backend(t, "app")
	r := newReplay(t, strings.NewReplacer("18081", port(backend(t, "web")), "18082", port(backend(t, "web-v2"))))
	s := grpc.NewServer(grpc.UnknownServiceHandler(r.serve))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-served)
	})
	addr := l.Addr().String()
	tn := newTestProxy(t, addr, toService, withPolicies(addr), func(c *sidecar.Config) {
		c.Inbound.Origin = fixed(app)
		p := netip.MustParseAddrPort(app).Port()
		c.Inbound.Ports = settings.Ports{{First: p, Last: p}}
	})
	out := tn.client(t)
	in := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return dialFrom(t, elsewhere, tn.Inbound), nil
	}}}
	require.Equal(t, "web", servedBy(t, out, "http://web.example/"))
	require.Equal(t, "app", servedBy(t, in, "http://app.example/"))
	close(r.changed)
	require.Eventually(t, func() bool {
		return servedBy(t, out, "http://web.example/") == "web-v2" && servedBy(t, in, "http://app.example/") == "403 Forbidden"
	}, soon, 5*time.Millisecond)
}
