package profiles_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

type outcome struct {
	route *layer.Route
	class layer.Class
	err   error
}

// reporting is a router over one backend that answers with serve, and the
// outcomes that were reported.
func reporting(t *testing.T, serve func(ctx context.Context, req request) (*reply, error)) (*router, *[]outcome) {
	var outcomes []outcome
	bs := backends{prepare: func(b *backend) { b.serve = serve }}
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{
		{Name: "a", Match: profiles.Path("/a"), Classes: []profiles.ResponseClass{
			{Match: profiles.Status{Min: 404, Max: 404}, Failure: true},
			{Match: profiles.Status{Min: 503, Max: 503}},
		}},
		{Match: profiles.Path("/unnamed"), Classes: []profiles.ResponseClass{
			{Match: profiles.Status{Min: 200, Max: 200}, Failure: true},
		}},
	}}, &bs, profiles.WithOnResponse[request, *reply](func(route *layer.Route, class layer.Class, err error) {
		outcomes = append(outcomes, outcome{route, class, err})
	}))
	return r, &outcomes
}

func TestOnResponse(t *testing.T) {
	for _, tt := range []struct {
		what  string
		req   request
		reply reply
		route string
		class layer.Class
	}{
		{"class of the route", request{path: "/a"}, reply{status: 404}, "a", layer.Failure},
		{"class of the route, success", request{path: "/a"}, reply{status: 503}, "a", layer.Success},
		{"no class of the route", request{path: "/a"}, reply{status: 500}, "a", layer.Failure},
		{"default route", request{path: "/"}, reply{status: 404}, "", layer.Success},
		{"default route, 5xx", request{path: "/"}, reply{status: 503}, "", layer.Failure},
		{"route without name", request{path: "/unnamed"}, reply{status: 200}, "", layer.Failure},
		{
			"gRPC, header", request{path: "/", contentType: "application/grpc"},
			reply{status: 200, header: fields{"grpc-status": "14"}}, "", layer.Failure,
		},
		{
			"gRPC, trailer", request{path: "/", contentType: "application/grpc+proto"},
			reply{status: 200, trailer: fields{"grpc-status": "14"}}, "", layer.Failure,
		},
		{
			"not gRPC", request{path: "/", contentType: "text/plain"},
			reply{status: 200, trailer: fields{"grpc-status": "14"}}, "", layer.Success,
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			r, outcomes := reporting(t, func(context.Context, request) (*reply, error) { return &tt.reply, nil })
			_, err := r.Call(t.Context(), tt.req)
			require.NoError(t, err)
			require.Len(t, *outcomes, 1)
			got := (*outcomes)[0]
			assert.Equal(t, tt.class, got.class)
			assert.NoError(t, got.err)
			if tt.route == "" {
				assert.Nil(t, got.route)
			} else {
				assert.Equal(t, tt.route, got.route.Name)
			}
		})
	}
}

// The class is final at the end of the stream, and reported only then.
func TestOnResponseAtTheEnd(t *testing.T) {
	grpc := request{path: "/", contentType: "application/grpc"}
	for _, tt := range []struct {
		what    string
		req     request
		status  int
		trailer fields // set before the end
		end     error
		cancel  bool // the caller leaves before the end
		class   layer.Class
	}{
		{"complete", grpc, 200, fields{"grpc-status": "13"}, nil, false, layer.Failure},
		{"complete, success", grpc, 200, fields{"grpc-status": "5"}, nil, false, layer.Success},
		{"broken off", request{path: "/"}, 200, nil, io.ErrUnexpectedEOF, false, layer.Failure},
		{"broken off, though a class says success", request{path: "/a"}, 503, nil, io.ErrUnexpectedEOF, false, layer.Failure},
		{"deadline", request{path: "/"}, 200, nil, context.DeadlineExceeded, false, layer.Failure},
		{"not read to the end", request{path: "/"}, 200, nil, layer.ErrBodyClosedEarly, false, layer.Success},
		{"not read to the end, 5xx", request{path: "/"}, 500, nil, layer.ErrBodyClosedEarly, false, layer.Failure},
		{"not read to the end, trailers are not to be touched", grpc, 200, fields{"grpc-status": "13"}, layer.ErrBodyClosedEarly, false, layer.Success},
		{"the caller left", request{path: "/"}, 200, nil, errors.New("the caller's own reason"), true, layer.Success},
		{"the caller left a failure", request{path: "/a"}, 404, nil, context.Canceled, true, layer.Failure},
	} {
		t.Run(tt.what, func(t *testing.T) {
			r, outcomes := reporting(t, func(context.Context, request) (*reply, error) {
				return &reply{status: tt.status, open: true}, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			rsp, err := r.Call(ctx, tt.req)
			require.NoError(t, err)
			assert.Empty(t, *outcomes, "not before the end")
			rsp.trailer = tt.trailer
			if tt.cancel {
				cancel()
			}
			rsp.end(tt.end)
			require.Len(t, *outcomes, 1)
			assert.Equal(t, tt.class, (*outcomes)[0].class)
			assert.Equal(t, tt.end, (*outcomes)[0].err)
		})
	}
}

func TestOnResponseOfErrors(t *testing.T) {
	broken := errors.New("broken")
	var answer error
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, outcomes := reporting(t, func(context.Context, request) (*reply, error) {
		if errors.Is(answer, context.Canceled) {
			cancel()
		}
		return nil, answer
	})
	answer = broken
	_, err := r.Call(ctx, request{path: "/a"})
	require.Same(t, broken, err)
	require.Len(t, *outcomes, 1)
	assert.Equal(t, outcome{&layer.Route{Name: "a"}, layer.Failure, broken}, (*outcomes)[0])

	answer = &layer.Error{Layer: "queue", Kind: layer.ErrFailFast}
	_, err = r.Call(ctx, request{path: "/a"})
	require.ErrorIs(t, err, layer.ErrFailFast)
	assert.Len(t, *outcomes, 1, "a refusal is not the end of a request")

	answer = context.Canceled
	_, err = r.Call(ctx, request{path: "/a"})
	require.ErrorIs(t, err, context.Canceled)
	assert.Len(t, *outcomes, 1, "the caller left before there was a response")
}

// A limit above cancels as a caller does, but says why.
func TestOnResponseOfALimitAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, outcomes := reporting(t, hang)
		svc := layer.ResponseHeaderTimeout[request, *reply](time.Millisecond)(r)
		_, err := svc.Call(t.Context(), request{path: "/a"})
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		require.Len(t, *outcomes, 1)
		assert.Equal(t, layer.Failure, (*outcomes)[0].class)
	})
}

// A route's timeout covers the time in queues.
func TestOnResponseOfATimeoutInAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var classes []layer.Class
		p := retryable(func(r *profiles.Route) { r.Timeout = time.Millisecond })
		r, _ := serving(t, p, func(ctx context.Context, _ request) (*reply, error) {
			<-ctx.Done()
			return nil, &layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Err: context.Cause(ctx)}
		}, profiles.WithOnResponse[request, *reply](func(_ *layer.Route, class layer.Class, _ error) {
			classes = append(classes, class)
		}))
		_, err := r.Call(t.Context(), get)
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		assert.Equal(t, []layer.Class{layer.Failure}, classes)
	})
}

// One request is reported once, for any number of attempts.
func TestOnResponseOncePerRequest(t *testing.T) {
	reports := 0
	var bs backends
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{{Name: "all", Match: profiles.All{}}}}, &bs,
		profiles.WithOnResponse[request, *reply](func(*layer.Route, layer.Class, error) { reports++ }),
		profiles.WithPerRoute(func(_ profiles.Route, next service) service {
			return handler(func(ctx context.Context, req request) (*reply, error) {
				if _, err := next.Call(ctx, req); err != nil {
					return nil, err
				}
				return next.Call(ctx, req)
			})
		}))
	send(t, r, "GET", "/")
	assert.Equal(t, map[string]int64{target: 2}, bs.calls())
	assert.Equal(t, 1, reports)
}

func TestOnResponseOfAPanic(t *testing.T) {
	r, outcomes := reporting(t, func(context.Context, request) (*reply, error) { panic("boom") })
	require.PanicsWithValue(t, "boom", func() { _, _ = r.Call(t.Context(), request{path: "/a"}) })
	require.Len(t, *outcomes, 1)
	assert.Equal(t, layer.Failure, (*outcomes)[0].class)
	assert.Equal(t, "a", (*outcomes)[0].route.Name)
	require.Error(t, (*outcomes)[0].err)
}
