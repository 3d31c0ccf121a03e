package grpclayer

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/roundrobin"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gotower/gotower/layer"
)

func nop(next Service) Service { return passing{next} }

type passing struct{ Service }

func (p passing) Call(ctx context.Context, c *Call) (*Reply, error) { return p.Service.Call(ctx, c) }

var _ layer.Layer[*Call, *Reply] = nop

func BenchmarkUnaryClient(b *testing.B) {
	gRPC := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	for _, bench := range []struct {
		name  string
		layer Layer
	}{{"none", nil}, {"nop", nop}, {"timeout+limit", NewStack().Timeout(time.Minute).Limit(8).Layer()}} {
		b.Run(bench.name, func(b *testing.B) {
			intercept := NewClient(bench.layer).Unary
			req, rsp, opts := new(pb.SimpleRequest), new(pb.SimpleResponse), []grpc.CallOption{grpc.StaticMethod()}
			b.ReportAllocs()
			for b.Loop() {
				_ = intercept(b.Context(), method, req, rsp, nil, gRPC, opts...)
			}
		})
	}
}

func BenchmarkUnaryServer(b *testing.B) {
	handler := func(_ context.Context, req any) (any, error) { return req, nil }
	for _, bench := range []struct {
		name  string
		layer Layer
	}{{"none", nil}, {"nop", nop}, {"timeout+limit", NewStack().Timeout(time.Minute).Limit(8).Layer()}} {
		b.Run(bench.name, func(b *testing.B) {
			intercept := NewServer(bench.layer).Unary
			req, info := new(pb.SimpleRequest), &grpc.UnaryServerInfo{FullMethod: method}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = intercept(b.Context(), req, info, handler)
			}
		})
	}
}

func BenchmarkPick(b *testing.B) {
	addrs := []string{a1, a2, a3, "10.0.0.4:80", "10.0.0.5:80", "10.0.0.6:80", "10.0.0.7:80", "10.0.0.8:80"}
	for _, bench := range []struct {
		name    string
		builder balancer.Builder
	}{
		{"gotower", NewBalancer(name)},
		{"gotower+limit", NewBalancer(name, WithEndpointLayer(NewEndpointStack().Limit(1000).Layer()))},
		{"round_robin", balancer.Get(roundrobin.Name)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			fake := newFake()
			bal := bench.builder.Build(fake, balancer.BuildOptions{})
			defer bal.Close()
			if err := bal.UpdateClientConnState(addresses(addrs...)); err != nil {
				b.Fatal(err)
			}
			info := balancer.PickInfo{FullMethodName: method, Ctx: b.Context()}
			picker := fake.ready(info)
			b.ReportAllocs()
			for b.Loop() {
				r, err := picker.Pick(info)
				if err != nil {
					b.Fatal(err)
				}
				finish(r)
			}
		})
	}
}

func finish(r balancer.PickResult) {
	if r.Done != nil {
		r.Done(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	}
}
