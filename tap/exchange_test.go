package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
)

// The common fields of the three events, and the fields of each.
func TestExchangeEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		w := watchAll(t, reg)
		svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
			time.Sleep(30 * time.Millisecond)
			return &reply{status: 201, Body: io.NopCloser(strings.NewReader("hello")), trailer: fields{{"Grpc-Status", "0"}}}, nil
		}))
		ctx := layer.WithRoute(t.Context(), &layer.Route{Name: "vote", Labels: map[string]string{"route": "vote"}})
		rsp, err := svc.Call(ctx, get("/api/vote"))
		require.NoError(t, err)
		time.Sleep(12 * time.Millisecond)
		_, err = io.ReadAll(rsp.Body)
		require.NoError(t, err)
		time.Sleep(time.Second) // a Close after the end changes nothing
		require.NoError(t, rsp.Body.Close())

		common := Event{
			Direction:         Outbound,
			Source:            clientAddr,
			Destination:       serverAddr,
			SourceLabels:      hostLabels,
			DestinationLabels: podLabels,
			RouteLabels:       map[string]string{"route": "vote"},
		}
		init, response, end := common, common, common
		init.RequestInit = &RequestInit{Method: "GET", Scheme: "http", Authority: "web:80", Path: "/api/vote"}
		response.ResponseInit = &ResponseInit{SinceRequestInit: 30 * time.Millisecond, Status: 201}
		end.ResponseEnd = &ResponseEnd{
			SinceRequestInit: 42 * time.Millisecond, SinceResponseInit: new(12 * time.Millisecond),
			Bytes: 5, GRPCStatus: new(codes.OK),
		}
		require.Equal(t, []Event{init, response, end}, events(w))
	})
}

func TestExchangeAbsentFields(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	send(t, Layer[*call, *reply](reg, newAccess())(respond("")), &call{method: "GET", path: "/"})
	require.Equal(t, Event{
		SourceLabels: map[string]string{}, DestinationLabels: map[string]string{},
		RequestInit: &RequestInit{Method: "GET", Path: "/"},
	}, events(w)[0])
}

func TestExchangeRouteWithoutLabels(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	_, err := stand(reg, respond("")).Call(layer.WithRoute(t.Context(), &layer.Route{}), get("/"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{}, events(w)[0].RouteLabels)
}

type brokenBody struct{ err error }

func (b brokenBody) Read(p []byte) (int, error) { return copy(p, "abc"), b.err }
func (brokenBody) Close() error                 { return nil }

type coded struct{ code uint32 }

func (coded) Error() string       { return "coded" }
func (c coded) ResetCode() uint32 { return c.code }

// Response_end and eos, a row at a time.
func TestResponseEnd(t *testing.T) {
	body := func(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
	status := func(v string) fields { return fields{{"Grpc-Status", v}} }
	drain := func(rsp *reply) { _, _ = io.Copy(io.Discard, rsp.Body) }
	boom := errors.New("boom")
	tests := []struct {
		name  string
		rsp   *reply
		err   error
		read  func(*reply)
		bytes uint64
		grpc  any // a code, or nil
		reset any
	}{
		{"body finished", &reply{Body: body("hello")}, nil, drain, 5, nil, nil},
		{"no body", &reply{}, nil, nil, 0, nil, nil},
		{"grpc-status in trailers", &reply{Body: body("x"), trailer: status("14")}, nil, drain, 1, codes.Unavailable, nil},
		{"trailers go before headers", &reply{Body: body("x"), header: status("1"), trailer: status("0")}, nil, drain, 1, codes.OK, nil},
		{"trailers without grpc-status", &reply{Body: body("x"), header: status("1"), trailer: fields{{"a", "b"}}}, nil, drain, 1, codes.Canceled, nil},
		{"trailer does not parse", &reply{Body: body("x"), trailer: status("x")}, nil, drain, 1, nil, nil},
		{"trailer negative", &reply{Body: body("x"), trailer: status("-1")}, nil, drain, 1, nil, nil},
		{"trailer too large", &reply{Body: body("x"), trailer: status("4294967296")}, nil, drain, 1, nil, nil},
		{"unknown code", &reply{Body: body("x"), trailer: status("99")}, nil, drain, 1, codes.Code(99), nil},
		{"trailers-only response", &reply{header: status("1")}, nil, nil, 0, codes.Canceled, nil},
		{"trailers-only response, closed unread", &reply{Body: body(""), header: status("1")}, nil, func(r *reply) { r.Body.Close() }, 0, codes.Canceled, nil},
		{"dropped early", &reply{Body: body("hello"), trailer: status("0")}, nil, func(r *reply) {
			_, _ = r.Body.Read(make([]byte, 2))
			r.Body.Close()
		}, 2, nil, nil},
		{"body error", &reply{Body: brokenBody{boom}, trailer: status("0")}, nil, drain, 3, nil, nil},
		{"body reset", &reply{Body: brokenBody{fmt.Errorf("read: %w", coded{2})}}, nil, drain, 3, nil, uint32(2)},
		{"body cancelled", &reply{Body: brokenBody{context.Canceled}}, nil, drain, 3, nil, uint32(8)},
		{"body error, status in headers", &reply{Body: brokenBody{boom}, header: status("3")}, nil, drain, 3, codes.InvalidArgument, nil},
		{"body reset, status in headers", &reply{Body: brokenBody{coded{2}}, header: status("3")}, nil, drain, 3, nil, uint32(2)},
		{"failed", nil, boom, nil, 0, nil, nil},
		{"failed with a reset", nil, fmt.Errorf("sent: %w", coded{1}), nil, 0, nil, uint32(1)},
		{"timed out inside", nil, &layer.Error{Kind: layer.ErrTimeout}, nil, 0, nil, uint32(8)},
		{"refused", nil, &layer.Error{Kind: layer.ErrNotReady}, nil, 0, nil, uint32(7)},
		{"refused with a reset", nil, &layer.Error{Kind: layer.ErrNotReady, Err: coded{9}}, nil, 0, nil, uint32(7)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg := new(Registry)
			w := watch(t, reg, match.All(), 1, false)
			rsp, err := stand(reg, serve(func(context.Context, *call) (*reply, error) { return tt.rsp, tt.err })).Call(t.Context(), get("/"))
			require.ErrorIs(t, err, tt.err)
			if tt.read != nil {
				tt.read(rsp)
			}
			all := events(w)
			require.True(t, isDone(w), "the end was told")
			end := all[len(all)-1].ResponseEnd
			require.NotNil(t, end)
			require.Equal(t, tt.bytes, end.Bytes)
			require.Equal(t, tt.err == nil, end.SinceResponseInit != nil)
			if tt.grpc == nil {
				require.Nil(t, end.GRPCStatus)
			} else {
				require.Equal(t, tt.grpc, *end.GRPCStatus)
			}
			if tt.reset == nil {
				require.Nil(t, end.ResetCode)
			} else {
				require.Equal(t, tt.reset, *end.ResetCode)
			}
			if tt.err == nil {
				require.Equal(t, "qre", kinds(all))
			} else {
				require.Equal(t, "qe", kinds(all))
			}
		})
	}
}

// A caller that cancels at any time ends the stream with CANCEL.
func TestResponseEndCanceledCaller(t *testing.T) {
	cause := errors.New("the client hung up")
	t.Run("before the headers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			w := watchAll(t, reg)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			_, err := stand(reg, serve(func(ctx context.Context, _ *call) (*reply, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})).Call(ctx, get("/"))
			require.ErrorIs(t, err, cause)
			all := events(w)
			require.Equal(t, "qe", kinds(all))
			require.Equal(t, &ResponseEnd{SinceRequestInit: time.Second, ResetCode: new(uint32(8))}, all[1].ResponseEnd)
		})
	})
	t.Run("during an unread body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			w := watchAll(t, reg)
			ctx, cancel := context.WithCancelCause(t.Context())
			_, err := stand(reg, respond("never read")).Call(ctx, get("/"))
			require.NoError(t, err)
			time.Sleep(time.Second)
			cancel(cause)
			synctest.Wait()
			all := events(w)
			require.Equal(t, "qre", kinds(all))
			require.Equal(t, &ResponseEnd{
				SinceRequestInit: time.Second, SinceResponseInit: new(time.Second), ResetCode: new(uint32(8)),
			}, all[2].ResponseEnd)
		})
	})
}

// An early Close of the body is not a reset, even if the context has ended.
func TestResponseEndUnreadBody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Nil(t, resetCode(ctx, layer.ErrBodyClosedEarly))
	require.Equal(t, uint32(8), *resetCode(ctx, errors.New("any")))
}

// Several taps on one request are independent.
func TestStreamIDPerWatcher(t *testing.T) {
	reg := new(Registry)
	a, b := watchAll(t, reg), watch(t, reg, match.Path("/b"), 10, true)
	svc := stand(reg, respond("x"))
	send(t, svc, get("/a"))
	send(t, svc, get("/b"))
	ids := func(all []Event) (ids []StreamID) {
		for _, e := range all {
			ids = append(ids, e.ID)
		}
		return ids
	}
	require.Equal(t, []StreamID{{0, 0}, {0, 0}, {0, 0}, {0, 1}, {0, 1}, {0, 1}}, ids(events(a)))
	require.Equal(t, []StreamID{{1, 0}, {1, 0}, {1, 0}}, ids(events(b)))
}

func TestStreamIDBaseOverflow(t *testing.T) {
	reg := &Registry{nextBase: 1<<32 - 1}
	a, b := watchAll(t, reg), watchAll(t, reg)
	require.Equal(t, []uint32{1<<32 - 1, 0}, []uint32{a.base, b.base})
}

func TestHeadersOnlyOnRequest(t *testing.T) {
	reg := new(Registry)
	with, without := watch(t, reg, match.All(), 9, true), watch(t, reg, match.All(), 9, false)
	req := get("/")
	req.header = fields{{"X-Two", "1"}, {"X-Two", "2"}, {"X-Raw", "\xff\x00"}}
	send(t, stand(reg, serve(func(context.Context, *call) (*reply, error) {
		return &reply{
			status: 200, Body: io.NopCloser(strings.NewReader("")),
			header: fields{{"Content-Type", "text/plain"}}, trailer: fields{{"Grpc-Status", "5"}},
		}, nil
	})), req)

	all := events(with)
	require.Equal(t, []Field{{"x-raw", "\xff\x00"}, {"x-two", "1"}, {"x-two", "2"}}, all[0].RequestInit.Headers, "by name, raw")
	require.Equal(t, []Field{{"content-type", "text/plain"}}, all[1].ResponseInit.Headers)
	require.Equal(t, []Field{{"grpc-status", "5"}}, all[2].ResponseEnd.Trailers)

	all = events(without)
	require.Nil(t, all[0].RequestInit.Headers)
	require.Nil(t, all[1].ResponseInit.Headers)
	require.Nil(t, all[2].ResponseEnd.Trailers)
	require.Equal(t, codes.NotFound, *all[2].ResponseEnd.GRPCStatus)
}

func TestHeadersEmptyOrNil(t *testing.T) {
	reg := new(Registry)
	w := watch(t, reg, match.All(), 9, true)
	send(t, stand(reg, respond("")), get("/"))
	all := events(w)
	require.Equal(t, []Field{}, all[0].RequestInit.Headers)
	require.Equal(t, []Field{}, all[1].ResponseInit.Headers)
	require.Nil(t, all[2].ResponseEnd.Trailers, "there were none")
}

func TestSecretsAreRedacted(t *testing.T) {
	secrets := fields{
		{"Authorization", "Bearer s3cret"},
		{"COOKIE", "id=s3cret"}, {"cookie", "other=s3cret"},
		{"Set-Cookie", "id=s3cret"},
		{"proxy-authorization", "Basic s3cret"},
		{"X-Api-Key", "k3y"},
		{"X-Plain", "plain"},
	}
	show := func(opts ...RegistryOption) string {
		reg := NewRegistry(opts...)
		w := watch(t, reg, match.All(), 9, true)
		req := get("/")
		req.header = secrets
		req.authority = "me:s3cret@web:80"
		send(t, stand(reg, serve(func(context.Context, *call) (*reply, error) {
			return &reply{Body: io.NopCloser(strings.NewReader("")), header: secrets, trailer: secrets}, nil
		})), req)
		require.Equal(t, "Bearer s3cret", req.header[0][1], "the request itself keeps it")
		var b strings.Builder
		for _, e := range events(w) {
			b.WriteString(received(t, e.proto()).String())
		}
		return b.String()
	}
	text := show()
	require.NotContains(t, text, "s3cret")
	require.Equal(t, 18, strings.Count(text, redacted))
	require.NotContains(t, text, "k3y")
	require.Contains(t, text, "plain")

	text = show(WithRevealed("X-API-Key"))
	require.Contains(t, text, "k3y")
	require.NotContains(t, text, "s3cret")

	text = show(WithRevealed("Cookie"))
	require.Contains(t, text, "id=s3cret")
	require.NotContains(t, text, "Bearer s3cret")
	require.NotContains(t, text, "me:s3cret")

	require.NotContains(t, show(WithRevealed("Cookie"), WithRedacted("cookie")), "s3cret", "the last one holds")
}

func TestSourceIsNormalised(t *testing.T) {
	reg := new(Registry)
	w := watch(t, reg, match.Source(mask("10.0.0.0/8")), 9, false)
	req := get("/")
	req.source = netip.MustParseAddrPort("[::ffff:10.0.0.1]:7")
	send(t, stand(reg, respond("")), req)
	require.Equal(t, netip.MustParseAddrPort("10.0.0.1:7"), events(w)[0].Source)
}
