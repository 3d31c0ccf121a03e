package controller

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/linkerd"
)

// Any configuration that is written in the usual form is read back unchanged.
func TestWriteParseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawConfig(t)
		data, err := yaml.Marshal(written(want))
		require.NoError(t, err)
		got, err := Parse("f", data)
		require.NoError(t, err, "%s", data)
		require.Equal(t, want, got, "%s", data)
		c := New(nil)
		require.NoError(t, c.Set(got))
		for name, e := range c.entries {
			understood(t, name, e.profile)
		}
	})
}

// understood verifies that a client uses every part of a profile.
func understood(t *rapid.T, name string, msg *pb.DestinationProfile) {
	var log record
	source := linkerd.New(conn{msg}, linkerd.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	for p, err := range source.Watch(t.Context(), name) {
		require.NoError(t, err)
		require.NoError(t, p.Validate())
		require.Len(t, p.Routes, len(msg.GetRoutes()))
		require.Len(t, p.Targets, len(msg.GetDstOverrides()))
		if p.Endpoint != nil {
			require.Equal(t, profiles.ToEndpoint, p.Dispatch(name).To, "it is of use")
		}
		break
	}
	require.Empty(t, log.take())
}

// conn responds to each call with one message.
type conn struct{ msg proto.Message }

func (conn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return io.EOF }

func (c conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &oneMessage{ctx: ctx, msg: c.msg}, nil
}

type oneMessage struct {
	grpc.ClientStream
	ctx context.Context
	msg proto.Message
}

func (*oneMessage) SendMsg(any) error { return nil }
func (*oneMessage) CloseSend() error  { return nil }
func (s *oneMessage) RecvMsg(into any) error {
	proto.Merge(into.(proto.Message), s.msg)
	return nil
}

func drawConfig(t *rapid.T) Config {
	cfg := Config{Destinations: map[string]Destination{}}
	for i := range rapid.IntRange(1, 3).Draw(t, "destinations") {
		if rapid.IntRange(0, 4).Draw(t, "address") == 0 {
			cfg.Destinations[fmt.Sprintf("10.0.0.%d:80", i)] = Destination{Profile: drawProfile(t, true)}
			continue
		}
		d := Destination{Labels: drawLabels(t)}
		if rapid.Bool().Draw(t, "profile") {
			d.Profile = drawProfile(t, false)
		}
		for j := range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			d.Endpoints = append(d.Endpoints, drawEndpoint(t, j))
		}
		cfg.Destinations[fmt.Sprintf("web-%d.test:%d", i, 8000+i)] = d
	}
	return cfg
}

func drawLabels(t *rapid.T) map[string]string {
	// yaml.Marshal writes "\t\n" in a way that it does not read itself.
	value := rapid.StringN(0, 5, 20).Filter(func(s string) bool { return !strings.Contains(s, "\t") })
	labels := rapid.MapOfN(rapid.StringMatching(`[a-z]{1,3}`), value, 0, 2).
		Filter(func(m map[string]string) bool { _, ok := m["route"]; return !ok }).Draw(t, "labels")
	if len(labels) == 0 {
		return nil // the field is not written
	}
	return labels
}

func drawEndpoint(t *rapid.T, i int) Endpoint {
	ep := Endpoint{
		Addr:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), rapid.Uint16Min(1).Draw(t, "port")),
		Weight:    rapid.Uint32().Draw(t, "weight"),
		Labels:    drawLabels(t),
		Protocol:  rapid.SampledFrom([]Protocol{Unknown, H2, Opaque}).Draw(t, "protocol"),
		Identity:  rapid.SampledFrom([]string{"", "web.id", "spiffe://td/web"}).Draw(t, "identity"),
		Authority: rapid.SampledFrom([]string{"", "other.test:81"}).Draw(t, "authority"),
	}
	if ep.Identity != "" {
		ep.ServerName = "web.sni"
		ep.InboundPort = rapid.Uint16Max(1<<16-2).Draw(t, "inbound")
	}
	return ep
}

func drawProfile(t *rapid.T, address bool) *Profile {
	p := &Profile{
		Name:   rapid.SampledFrom([]string{"", "web.name"}).Draw(t, "name"),
		Opaque: rapid.Bool().Draw(t, "opaque"),
	}
	if address && p.Name == "" && rapid.Bool().Draw(t, "exact") {
		ep := drawEndpoint(t, 0)
		p.Endpoint = &ep
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "routes") {
		r := Route{
			Name: fmt.Sprint("r", i), Labels: drawLabels(t), Match: drawMatch(t, 3),
			Retryable: rapid.Bool().Draw(t, "retryable"),
			Timeout:   time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "timeout")),
		}
		r.RetryNonIdempotent = r.Retryable && rapid.Bool().Draw(t, "non-idempotent")
		for range rapid.IntRange(0, 2).Draw(t, "classes") {
			lowest := rapid.Uint32Range(100, 999).Draw(t, "lowest")
			r.Classes = append(r.Classes, ResponseClass{
				Min: lowest, Max: rapid.Uint32Range(lowest, 999).Draw(t, "highest"), Failure: rapid.Bool().Draw(t, "failure"),
			})
		}
		p.Routes = append(p.Routes, r)
	}
	for range rapid.IntRange(0, 2).Draw(t, "splits") {
		p.Splits = append(p.Splits, Split{Authority: "leaf.test:80", Weight: rapid.Uint32().Draw(t, "share")})
	}
	if rapid.Bool().Draw(t, "budget") {
		p.Budget = &RetryBudget{
			Ratio: rapid.Float64Range(0, 1000).Draw(t, "ratio"), MinPerSecond: rapid.Uint32Range(0, 1<<31-1).Draw(t, "min"),
			TTL: time.Duration(rapid.Int64Range(int64(time.Second), int64(time.Minute)).Draw(t, "ttl")),
		}
	}
	return p
}

func drawMatch(t *rapid.T, depth int) Match {
	m := Match{Path: rapid.SampledFrom([]string{"/.*", "/a[0-9]+: #x", "'"}).Draw(t, "path")}
	m.Method = rapid.SampledFrom([]string{"", "GET", "PURGE"}).Draw(t, "method")
	if depth == 0 {
		return m
	}
	for range rapid.IntRange(0, 2).Draw(t, "all") {
		m.All = append(m.All, drawMatch(t, depth-1))
	}
	for range rapid.IntRange(0, 1).Draw(t, "any") {
		m.Any = append(m.Any, drawMatch(t, depth-1))
	}
	if rapid.Bool().Draw(t, "not") {
		inner := drawMatch(t, depth-1)
		m.Not = &inner
	}
	return m
}

// object is a mapping of the file. Fields that are not set are left out.
type object map[string]any

func (o object) with(field string, value any, set bool) object {
	if set {
		o[field] = value
	}
	return o
}

func written(cfg Config) object {
	all := object{}
	for name, d := range cfg.Destinations {
		var endpoints []object
		for _, ep := range d.Endpoints {
			endpoints = append(endpoints, writtenEndpoint(ep))
		}
		o := object{}.with("labels", d.Labels, len(d.Labels) > 0).with("endpoints", endpoints, endpoints != nil)
		if d.Profile != nil {
			o["profile"] = writtenProfile(d.Profile)
		}
		all[name] = o
	}
	return object{"destinations": all}
}

func writtenEndpoint(ep Endpoint) object {
	return object{"addr": ep.Addr.String()}.
		with("weight", ep.Weight, ep.Weight > 0).
		with("labels", ep.Labels, len(ep.Labels) > 0).
		with("protocol", string(ep.Protocol), ep.Protocol != Unknown).
		with("identity", ep.Identity, ep.Identity != "").
		with("server_name", ep.ServerName, ep.ServerName != "").
		with("authority", ep.Authority, ep.Authority != "").
		with("opaque_port", ep.InboundPort, ep.InboundPort != 0)
}

func writtenProfile(p *Profile) object {
	var routes, splits []object
	for _, r := range p.Routes {
		var classes []object
		for _, c := range r.Classes {
			classes = append(classes, object{"status": fmt.Sprintf("%d-%d", c.Min, c.Max), "is_failure": c.Failure})
		}
		routes = append(routes, object{"name": r.Name, "match": writtenMatch(r.Match), "retryable": r.Retryable}.
			with("retry_non_idempotent", r.RetryNonIdempotent, r.RetryNonIdempotent).
			with("labels", r.Labels, len(r.Labels) > 0).
			with("timeout", r.Timeout.String(), r.Timeout > 0).
			with("response_classes", classes, classes != nil))
	}
	for _, s := range p.Splits {
		splits = append(splits, object{"authority": s.Authority, "weight": s.Weight})
	}
	o := object{"opaque": p.Opaque}.with("name", p.Name, p.Name != "").
		with("routes", routes, routes != nil).with("splits", splits, splits != nil)
	if p.Endpoint != nil {
		o["endpoint"] = writtenEndpoint(*p.Endpoint)
	}
	if b := p.Budget; b != nil {
		o["retry_budget"] = object{"ratio": b.Ratio, "min_per_second": b.MinPerSecond, "ttl": b.TTL.String()}
	}
	return o
}

func writtenMatch(m Match) object {
	list := func(ms []Match) []object {
		var os []object
		for _, inner := range ms {
			os = append(os, writtenMatch(inner))
		}
		return os
	}
	o := object{"path": m.Path}.with("method", m.Method, m.Method != "").
		with("all", list(m.All), m.All != nil).with("any", list(m.Any), m.Any != nil)
	if m.Not != nil {
		o["not"] = writtenMatch(*m.Not)
	}
	return o
}
