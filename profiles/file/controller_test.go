package file

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/linkerd"
)

// controller serves the same profile for every request.
type controller struct {
	destination.UnimplementedDestinationServer
	profile atomic.Pointer[destination.DestinationProfile]
}

func (c *controller) GetProfile(_ *destination.GetDestination, out grpc.ServerStreamingServer[destination.DestinationProfile]) error {
	if err := out.Send(c.profile.Load()); err != nil {
		return err
	}
	<-out.Context().Done()
	return nil
}

func dial(t *testing.T, c *controller) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	destination.RegisterDestinationServer(server, c)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:controller",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// request draws a condition and what the controller makes of it: of one field
// that itself, of several all of them.
func (d draw) request(depth int) (object, *destination.RequestMatch) {
	o := object{}
	var parts []*destination.RequestMatch
	members := func(name string) *destination.RequestMatch_Seq {
		var list []object
		seq := &destination.RequestMatch_Seq{}
		for range d.int(1, 3) {
			member, m := d.request(depth - 1)
			list, seq.Matches = append(list, member), append(seq.Matches, m)
		}
		o[name] = list
		return seq
	}
	given := d.int(1, 31)
	if depth == 0 {
		given = given&20 | 4
	}
	if given&1 != 0 {
		parts = append(parts, &destination.RequestMatch{Match: &destination.RequestMatch_All{All: members("all")}})
	}
	if given&2 != 0 {
		parts = append(parts, &destination.RequestMatch{Match: &destination.RequestMatch_Any{Any: members("any")}})
	}
	if given&4 != 0 {
		method := &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_PATCH}}
		o["method"] = "patch"
		if d.int(0, 1) == 0 {
			method.Type, o["method"] = &http_types.HttpMethod_Unregistered{Unregistered: "PURGE"}, "Purge"
		}
		parts = append(parts, &destination.RequestMatch{Match: &destination.RequestMatch_Method{Method: method}})
	}
	if given&8 != 0 {
		not, m := d.request(depth - 1)
		o["not"] = not
		parts = append(parts, &destination.RequestMatch{Match: &destination.RequestMatch_Not{Not: m}})
	}
	if given&16 != 0 {
		regex := d.pick("/a|/b", " /x ", `/authors/\d+`)
		o["pathRegex"] = regex
		parts = append(parts, &destination.RequestMatch{Match: &destination.RequestMatch_Path{Path: &destination.PathMatch{Regex: regex}}})
	}
	if len(parts) == 1 {
		return o, parts[0]
	}
	return o, &destination.RequestMatch{Match: &destination.RequestMatch_All{All: &destination.RequestMatch_Seq{Matches: parts}}}
}

// class draws a response class with a range that may have an open end: the proxy
// drops that, and the others stay.
func (d draw) class() (object, *destination.ResponseClass) {
	low, high := uint32(d.int(99, 400)), uint32(d.int(400, 599))
	status := object{"min": low, "max": high}
	if low == 99 {
		low, status = 0, object{"max": high}
	}
	failure := d.int(0, 1) == 1
	m := &destination.ResponseMatch{Match: &destination.ResponseMatch_Status{Status: &destination.HttpStatusRange{Min: low, Max: high}}}
	condition := object{"status": status}
	if d.int(0, 2) == 0 {
		condition = object{"not": condition}
		m = &destination.ResponseMatch{Match: &destination.ResponseMatch_Not{Not: m}}
	}
	if d.int(0, 2) == 0 {
		condition = object{"any": []object{condition}}
		m = &destination.ResponseMatch{Match: &destination.ResponseMatch_Any{Any: &destination.ResponseMatch_Seq{
			Matches: []*destination.ResponseMatch{m},
		}}}
	}
	return object{"condition": condition, "isFailure": failure}, &destination.ResponseClass{Condition: m, IsFailure: failure}
}

// spec draws a spec, and what the controller sends of it for port 8080.
func (d draw) spec() (object, *destination.DestinationProfile) {
	o := object{}
	p := &destination.DestinationProfile{
		FullyQualifiedName: "web.ns.svc.cluster.local",
		RetryBudget:        &destination.RetryBudget{RetryRatio: 0.25, MinRetriesPerSecond: 10, Ttl: durationpb.New(10 * time.Second)},
	}
	seconds, minimum := d.int(0, 62), d.int(0, 20)
	p.RetryBudget.MinRetriesPerSecond, p.RetryBudget.Ttl = uint32(minimum), durationpb.New(time.Duration(seconds)*time.Second)
	o["retryBudget"] = object{"retryRatio": 0.25, "minRetriesPerSecond": minimum, "ttl": fmt.Sprintf("%ds", seconds)}
	var routes, overrides []object
	for i := range d.int(0, 3) {
		r := &destination.Route{MetricsLabels: map[string]string{"route": fmt.Sprint(i)}, IsRetryable: d.int(0, 1) == 1}
		route := object{"name": fmt.Sprint(i), "isRetryable": r.GetIsRetryable()}
		route["condition"], r.Condition = d.request(2)
		if timeout := time.Duration(d.int(-1, 3)) * time.Second; timeout != 0 {
			r.Timeout, route["timeout"] = durationpb.New(timeout), timeout.String()
		}
		var classes []object
		for range d.int(0, 2) {
			class, c := d.class()
			classes, r.ResponseClasses = append(classes, class), append(r.ResponseClasses, c)
		}
		route["responseClasses"] = classes
		routes, p.Routes = append(routes, route), append(p.Routes, r)
	}
	for range d.int(0, 3) {
		milli := d.int(0, 5000)
		authority := d.pick("a.ns.svc.cluster.local", "b.ns:90", "10.0.0.1")
		overrides = append(overrides, object{"authority": authority, "weight": fmt.Sprintf("%dm", milli)})
		p.DstOverrides = append(p.DstOverrides, &destination.WeightedDst{Authority: withPort(authority, 8080), Weight: uint32(milli * 10)})
	}
	o["routes"], o["dstOverrides"] = routes, overrides
	if p.OpaqueProtocol = d.int(0, 1) == 1; p.GetOpaqueProtocol() {
		o["opaquePorts"] = object{"8080": object{}}
	}
	return o, p
}

// A ServiceProfile from a file is the profile that linkerd's controller makes
// of it and [linkerd.New] reads.
func TestServiceProfileOfController(t *testing.T) {
	const target = "web.ns.svc.cluster.local:8080"
	c := &controller{}
	theirs := linkerd.New(dial(t, c))
	rapid.Check(t, func(t *rapid.T) {
		spec, sent := draw{t}.spec()
		data, err := json.Marshal(object{
			"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile",
			"metadata": object{"name": "web.ns.svc.cluster.local"}, "spec": spec,
		})
		require.NoError(t, err)
		s, err := Parse("f", data)
		require.NoError(t, err, "%s", data)
		c.profile.Store(sent)
		var want *profiles.Profile
		for want, err = range theirs.Watch(t.Context(), target) {
			break
		}
		require.NoError(t, err)
		require.Equal(t, want, s.Profile(target), "%s", data)
	})
}
