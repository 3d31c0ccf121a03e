package tap

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

func TestWatchEmptyRequest(t *testing.T) {
	t.Parallel()
	p := listen(t, NewServer(new(Registry)), nil)
	stream := p.watch(t.Context(), t, &tappb.WatchRequest{})
	svc := stand(p.reg, respond("hello"))
	for i := range uint64(50) { // no limit
		send(t, svc, get("/"))
		got := []Event{recvWatch(t, stream), recvWatch(t, stream), recvWatch(t, stream)}
		require.Equal(t, "qre", kinds(got))
		require.Equal(t, StreamID{0, i}, got[2].ID)
		require.Nil(t, got[0].RequestInit.Headers)
		require.Nil(t, got[2].ResponseEnd.Explanation)
		require.Nil(t, got[2].ResponseEnd.ResponseBody)
	}
}

func TestRegistryWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		svc := stand(reg, respond("hello"))
		req := &tappb.WatchRequest{Match: match.PathPrefix("/a"), Limit: 2, Fields: true}
		var got []Event
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for e, err := range reg.Watch(t.Context(), req) {
				assert.NoError(t, err)
				got = append(got, e)
			}
		}()
		synctest.Wait()
		for _, path := range []string{"/a", "/b", "/ab", "/abc"} {
			send(t, svc, get(path))
		}
		<-ended
		require.Equal(t, "qreqre", kinds(got))
		require.Equal(t, []string{"/a", "/ab"}, []string{got[0].RequestInit.Path, got[3].RequestInit.Path})
		require.NotNil(t, got[0].RequestInit.Headers)
		require.Nil(t, reg.active.Load())
	})
}

func TestRegistryWatchEnds(t *testing.T) {
	for name, leave := range map[string]func(cancel context.CancelCauseFunc, more *bool){
		"break": func(_ context.CancelCauseFunc, more *bool) { *more = false },
		"ctx":   func(cancel context.CancelCauseFunc, _ *bool) { cancel(errors.New("enough of it")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := new(Registry)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				more := true
				var last error
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for _, err := range reg.Watch(ctx, &tappb.WatchRequest{}) {
						if last = err; !more {
							break
						}
					}
				}()
				synctest.Wait()
				leave(cancel, &more)
				send(t, stand(reg, respond("")), get("/"))
				<-ended
				if name == "ctx" {
					require.EqualError(t, last, "tap: watch: enough of it")
				} else {
					require.NoError(t, last)
				}
				require.Nil(t, reg.active.Load())
				require.Empty(t, reg.Describe().Children)
			})
		})
	}
}

func TestSampleSharedByWatchers(t *testing.T) {
	draws := 0
	next := []float64{.05, .5, .95, .1, .0999}
	reg := &Registry{random: func() float64 { draws++; return next[draws-1] }}
	tenth := watchOn(t, reg, &tappb.WatchRequest{Sample: .1})
	most := watchOn(t, reg, &tappb.WatchRequest{Sample: .9, Response: &tappb.ResponseMatch{}})
	all := watchOn(t, reg, &tappb.WatchRequest{})
	every := watchOn(t, reg, &tappb.WatchRequest{Sample: 1})
	none := watchOn(t, reg, &tappb.WatchRequest{Sample: .5, Match: match.Method("PUT")})
	svc := stand(reg, respond("x"))
	for _, path := range []string{"/0", "/1", "/2", "/3", "/4"} {
		send(t, svc, get(path))
	}
	paths := func(w *watcher) (all string) {
		for _, e := range events(w) {
			if e.RequestInit != nil {
				all += e.RequestInit.Path
			}
		}
		return all
	}
	require.Equal(t, 5, draws)
	require.Equal(t, "/0/4", paths(tenth))
	require.Equal(t, "/0/1/3/4", paths(most), "a larger sample includes a smaller one")
	require.Equal(t, "/0/1/2/3/4", paths(all))
	require.Equal(t, "/0/1/2/3/4", paths(every))
	require.Empty(t, paths(none))
	require.EqualValues(t, 2, tenth.seen.Load(), "the limit counts what was drawn")
}

func TestSampleFraction(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{Sample: .25, Response: &tappb.ResponseMatch{GrpcStatus: []uint32{16}}})
	n := 0
	for range 4000 {
		if w.admits(&draw{reg: reg}) {
			n++
		}
	}
	require.InDelta(t, 1000, n, 150, "five and a half standard deviations")
}

// At the end of its duration a watch ends without an error, and no longer
// matches requests even if its client does not read.
func TestWatchDuration(t *testing.T) {
	t.Run("over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			svc := stand(reg, respond("x"))
			start := time.Now()
			var got []Event
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for e, err := range reg.Watch(t.Context(), &tappb.WatchRequest{Duration: durationpb.New(30 * time.Second)}) {
					assert.NoError(t, err)
					got = append(got, e)
				}
			}()
			time.Sleep(30*time.Second - 1)
			rsp, err := svc.Call(t.Context(), get("/"))
			require.NoError(t, err)
			<-ended
			require.Equal(t, 30*time.Second, time.Since(start))
			require.Equal(t, "qr", kinds(got))
			require.Nil(t, reg.active.Load())
			require.NoError(t, rsp.Body.Close())
		})
	})
	t.Run("limit first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			start := time.Now()
			go func() {
				synctest.Wait()
				rsp, err := stand(reg, respond("x")).Call(t.Context(), get("/"))
				assert.NoError(t, err)
				assert.NoError(t, rsp.Body.Close())
			}()
			for range reg.Watch(t.Context(), &tappb.WatchRequest{Duration: durationpb.New(time.Hour), Limit: 1}) {
			}
			require.Zero(t, time.Since(start))
		})
	})
	t.Run("not read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			srv := NewServer(new(Registry), WithAllowRemote())
			svc := stand(srv.reg, respond("x"))
			stuck := make(chan struct{})
			ended := make(chan error)
			sent := 0
			go func() {
				ended <- gotowerTap{server: srv}.Watch(&tappb.WatchRequest{Duration: durationpb.New(time.Second)}, watchStream{
					ctx: t.Context(), send: func(*tappb.WatchResponse) error { <-stuck; sent++; return nil },
				})
			}()
			synctest.Wait()
			send(t, svc, get("/"))
			time.Sleep(2 * time.Second)
			require.Nil(t, srv.reg.active.Load(), "requests are not looked at")
			require.Len(t, srv.reg.Describe().Children, 1, "but its buffer is still there, and counts")
			close(stuck)
			require.NoError(t, <-ended)
			require.Equal(t, 3, sent)
			require.Empty(t, srv.reg.Describe().Children)
		})
	})
}

// The features of Watch beyond Observe, with net/http on both sides of the tap.
func TestWatchNetHTTP(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusBadGateway)
		}
		_, _ = io.Copy(w, r.Body)
	}))
	defer upstream.Close()
	p := listen(t, NewServer(NewRegistry(WithBodies(64, func(contentType string, body []byte) []byte {
		if contentType != "application/json" {
			return nil
		}
		return bytes.ReplaceAll(body, []byte("s3cret"), []byte("***"))
	}))), nil)
	stack := Explain(p.reg, httplayer.HTTP{})(Layer(p.reg, httplayer.HTTP{})(
		layer.Func[*http.Request, *http.Response](func(ctx context.Context, r *http.Request) (*http.Response, error) {
			layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "below"})
			return upstream.Client().Transport.RoundTrip(r)
		})))
	call := func(path, team, contentType, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, upstream.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("X-Team", team)
		r.Header.Set("Content-Type", contentType)
		rsp, err := stack.Call(t.Context(), r)
		require.NoError(t, err)
		got, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.Equal(t, body, string(got))
	}
	stream := p.watch(t.Context(), t, &tappb.WatchRequest{
		Limit: 2, Headers: []*tappb.HeaderMatch{exactly("x-team", "blue")}, Response: &tappb.ResponseMatch{MinStatus: 500, MaxStatus: 599},
		BodyBytes: 1000, Explain: true,
	})
	call("/good", "blue", "application/json", "{}")
	call("/bad", "red", "application/json", "{}")
	call("/bad", "blue", "application/json", `{"password":"s3cret"}`)
	call("/bad", "blue", "text/plain", strings.Repeat("s3cret", 30))

	got := []Event{recvWatch(t, stream), recvWatch(t, stream), recvWatch(t, stream)}
	require.Equal(t, "qre", kinds(got))
	require.Equal(t, "/bad", got[0].RequestInit.Path)
	require.Equal(t, 502, got[1].ResponseInit.Status)
	end := got[2].ResponseEnd
	require.JSONEq(t, `{"password":"***"}`, string(end.RequestBody.Data))
	require.JSONEq(t, `{"password":"***"}`, string(end.ResponseBody.Data))
	require.EqualValues(t, 21, end.Bytes, "as it was sent")
	require.Equal(t, []layer.Node{{Name: "below"}}, end.Explanation)

	end = endOf(t, []Event{recvWatch(t, stream), recvWatch(t, stream), recvWatch(t, stream)})
	require.Empty(t, end.RequestBody.Data, "not json: the hook withholds it")
	require.True(t, end.RequestBody.Cut)
	_, err := stream.Recv()
	require.ErrorIs(t, err, io.EOF)
}

func exactly(name, value string) *tappb.HeaderMatch {
	return &tappb.HeaderMatch{Name: name, Value: &tappb.HeaderMatch_Exact{Exact: value}}
}

func beginning(name, value string) *tappb.HeaderMatch {
	return &tappb.HeaderMatch{Name: name, Value: &tappb.HeaderMatch_Prefix{Prefix: value}}
}

func having(name string, is bool) *tappb.HeaderMatch {
	return &tappb.HeaderMatch{Name: name, Value: &tappb.HeaderMatch_Present{Present: is}}
}

// Rejections are the same in the process and over gRPC.
func TestWatchRejects(t *testing.T) {
	p := listen(t, NewServer(NewRegistry(WithCapacity(1, 0))), nil)
	const wrong, forbidden = codes.InvalidArgument, codes.PermissionDenied
	tests := map[string]struct {
		req  *tappb.WatchRequest
		code codes.Code
		want string
	}{
		"match":              {&tappb.WatchRequest{Match: match.Not(nil)}, wrong, "tap: match.not: missing"},
		"header name":        {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{having("a", true), having(":path", true)}}, wrong, `tap: headers[1].name: missing or not a header name: ":path"`},
		"header without one": {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{nil}}, wrong, `tap: headers[0].name: missing or not a header name: ""`},
		"header value":       {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{{Name: "a"}}}, wrong, "tap: headers[0]: neither exact nor prefix nor present"},
		"too many headers":   {&tappb.WatchRequest{Headers: make([]*tappb.HeaderMatch, 1001)}, wrong, "tap: match: more than 1000 conditions"},
		"long match":         {&tappb.WatchRequest{Match: match.PathPrefix(strings.Repeat("/", 65<<10))}, wrong, "tap: match: more than 64 KiB"},
		"long header":        {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{having(strings.Repeat("a", 65<<10), true)}}, wrong, "tap: match: more than 64 KiB"},
		"many statuses":      {&tappb.WatchRequest{Response: &tappb.ResponseMatch{GrpcStatus: make([]uint32, 101)}}, wrong, "tap: response.grpc_status: more than 100"},
		"secret exact":       {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{exactly("AUTHORIZATION", "x")}}, forbidden, "tap: headers[0]: the value of authorization is withheld: match only its presence"},
		"secret prefix":      {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{beginning("cookie", "")}}, forbidden, "tap: headers[0]: the value of cookie is withheld: match only its presence"},
		"sample above":       {&tappb.WatchRequest{Sample: 1.5}, wrong, "tap: sample: 1.5 must be from 0 to 1"},
		"sample below":       {&tappb.WatchRequest{Sample: -.1}, wrong, "tap: sample: -0.1 must be from 0 to 1"},
		"sample nan":         {&tappb.WatchRequest{Sample: math.NaN()}, wrong, "tap: sample: NaN must be from 0 to 1"},
		"duration 0":         {&tappb.WatchRequest{Duration: durationpb.New(0)}, wrong, "tap: duration: must be positive"},
		"duration negative":  {&tappb.WatchRequest{Duration: durationpb.New(-1)}, wrong, "tap: duration: must be positive"},
		"duration invalid":   {&tappb.WatchRequest{Duration: &durationpb.Duration{Seconds: 1, Nanos: -1}}, wrong, "tap: duration: must be positive"},
		"bodies":             {&tappb.WatchRequest{BodyBytes: 1}, forbidden, "tap: body_bytes: the process has no tap.WithBodies"},
		"status max only":    {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MaxStatus: 1}}, wrong, "tap: response: min_status and max_status must be set together"},
		"status min only":    {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MinStatus: 1}}, wrong, "tap: response: min_status and max_status must be set together"},
		"status reversed":    {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MinStatus: 2, MaxStatus: 1}}, wrong, "tap: response: min_status 2 is above max_status 1"},
		"status impossible":  {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MinStatus: 999, MaxStatus: 999}}, wrong, "tap: response: no response has a status from 999 to 999: a status is from 100 to 599"},
		"code impossible":    {&tappb.WatchRequest{Response: &tappb.ResponseMatch{GrpcStatus: []uint32{17}}}, wrong, "tap: response.grpc_status: [17]: a code of gRPC is from 0 to 16"},
		"status too large":   {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MinStatus: 2, MaxStatus: 1000}}, wrong, "tap: response.max_status: 1000 is not a status"},
		"slower":             {&tappb.WatchRequest{Response: &tappb.ResponseMatch{SlowerThan: durationpb.New(-1)}}, wrong, "tap: response.slower_than: must not be negative"},
	}
	check := func(t *testing.T, req *tappb.WatchRequest, code codes.Code, want string) {
		t.Helper()
		n := 0
		for e, err := range p.reg.Watch(t.Context(), req) {
			n++
			require.Equal(t, Event{}, e)
			require.EqualError(t, err, want)
			require.Equal(t, code, status.Code(err))
		}
		require.Equal(t, 1, n)
		for _, err := range Watch(t.Context(), p.conn, req) {
			n++
			require.Equal(t, code, status.Code(err))
			require.Contains(t, err.Error(), want)
		}
		require.Equal(t, 2, n)
		require.Error(t, <-p.ended)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			check(t, tt.req, tt.code, tt.want)
			require.Nil(t, p.reg.active.Load())
		})
	}
	t.Run("too many", func(t *testing.T) {
		p.watch(t.Context(), t, &tappb.WatchRequest{})
		check(t, &tappb.WatchRequest{}, codes.ResourceExhausted, "tap: too many watchers: 1 of 1")
	})
}

func TestWatchRejectsClients(t *testing.T) {
	srv := NewServer(new(Registry), WithDescribe(nil))
	err := gotowerTap{server: srv}.Watch(nil, watchStream{ctx: t.Context()})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	_, err = gotowerTap{server: srv}.Describe(t.Context(), nil)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.Empty(t, srv.reg.Describe().Children)
}

func TestHeaderMatch(t *testing.T) {
	header := fields{{"X-Team", "blue"}, {"x-team", "red"}, {"Authorization", "Bearer s3cret"}, {"X-Empty", ""}}
	for name, tt := range map[string]struct {
		headers []*tappb.HeaderMatch
		want    bool
	}{
		"none":                    {nil, true},
		"exact":                   {[]*tappb.HeaderMatch{exactly("x-team", "blue")}, true},
		"exact, a later value":    {[]*tappb.HeaderMatch{exactly("X-TEAM", "red")}, true},
		"exact, case of a value":  {[]*tappb.HeaderMatch{exactly("x-team", "Blue")}, false},
		"exact, beginning":        {[]*tappb.HeaderMatch{exactly("x-team", "blu")}, false},
		"exact, empty":            {[]*tappb.HeaderMatch{exactly("x-empty", "")}, true},
		"exact, empty and absent": {[]*tappb.HeaderMatch{exactly("x-none", "")}, false},
		"prefix":                  {[]*tappb.HeaderMatch{beginning("x-team", "re")}, true},
		"prefix, other":           {[]*tappb.HeaderMatch{beginning("x-team", "g")}, false},
		"prefix, absent":          {[]*tappb.HeaderMatch{beginning("x-none", "")}, false},
		"present":                 {[]*tappb.HeaderMatch{having("x-empty", true)}, true},
		"present, not":            {[]*tappb.HeaderMatch{having("x-none", true)}, false},
		"absent":                  {[]*tappb.HeaderMatch{having("x-none", false)}, true},
		"absent, not":             {[]*tappb.HeaderMatch{having("x-team", false)}, false},
		"present, secret":         {[]*tappb.HeaderMatch{having("authorization", true)}, true},
		"all of them":             {[]*tappb.HeaderMatch{exactly("x-team", "blue"), having("x-empty", true)}, true},
		"one of them does not":    {[]*tappb.HeaderMatch{exactly("x-team", "blue"), having("x-none", true)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := new(Registry).filter(nil, tt.headers)
			require.NoError(t, err)
			require.Equal(t, tt.want, c.holds(headerView(header)))
		})
	}
	t.Run("with a match", func(t *testing.T) {
		c, err := new(Registry).filter(match.Method("GET"), []*tappb.HeaderMatch{having("x-team", true)})
		require.NoError(t, err)
		require.True(t, c.holds(headerView(header)))
		c, err = new(Registry).filter(match.Method("PUT"), []*tappb.HeaderMatch{having("x-team", true)})
		require.NoError(t, err)
		require.False(t, c.holds(headerView(header)))
	})
	t.Run("revealed", func(t *testing.T) {
		c, err := NewRegistry(WithRevealed("Authorization")).filter(nil, []*tappb.HeaderMatch{beginning("authorization", "Bearer ")})
		require.NoError(t, err)
		require.True(t, c.holds(headerView(header)))
	})
	t.Run("redacted", func(t *testing.T) {
		_, err := NewRegistry(WithRedacted("X-Team")).filter(nil, []*tappb.HeaderMatch{exactly("x-team", "blue")})
		require.Equal(t, codes.PermissionDenied, status.Code(err))
	})
}

func headerView(header fields) *view {
	s := sample()
	s.header = header
	return s.view()
}

// With any watchers, bodies do not change and nothing leaks, for net/http over
// HTTP/1 and HTTP/2, with callers that cancel, that do not read, and that read
// after Close.
func TestHTTPStressWatchersAndBodies(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!h2)
		protocols.SetUnencryptedHTTP2(h2)
		upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = io.Copy(w, r.Body)
			w.Header().Set("Grpc-Status", "0")
		}))
		upstream.Config.Protocols = protocols
		upstream.Start()
		transport := &http.Transport{Protocols: protocols}
		reg := NewRegistry(WithCapacity(8, 40), WithBodies(1000, func(_ string, b []byte) []byte {
			if len(b)%7 == 0 {
				panic("hook")
			}
			return b
		}))
		stack := Explain(reg, httplayer.HTTP{})(Layer(reg, httplayer.HTTP{})(
			layer.Func[*http.Request, *http.Response](func(ctx context.Context, r *http.Request) (*http.Response, error) {
				layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "below"})
				return transport.RoundTrip(r)
			})))
		stay := []*watcher{
			watchOn(t, reg, &tappb.WatchRequest{Fields: true, Explain: true, BodyBytes: 1000}),
			watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 9, Response: &tappb.ResponseMatch{Failures: true}}),
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					exchangeOne(t, upstream.URL, stack)
				}
			})
		}
		for range 8 {
			all.Go(func() {
				for ctx.Err() == nil {
					watchAWhile(ctx, reg)
				}
			})
		}
		all.Wait()
		cancel()
		for _, w := range stay {
			require.Eventually(t, func() bool {
				readAll(w)
				b := w.buf.Load()
				return w.inFlight.Load() == 0 && b.held.Load() == 0 && b.room.Load() == maxText
			}, 20*time.Second, time.Millisecond, "all have left, and all room is back")
			reg.close(w)
		}
		require.Nil(t, reg.active.Load())
		require.EqualValues(t, 0, reg.Describe().State.Get("watching"))
		transport.CloseIdleConnections()
		upstream.Close()
	}
}

func exchangeOne(t *testing.T, url string, stack layer.Service[*http.Request, *http.Response]) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	said := bytes.Repeat([]byte("0123456789"), rand.IntN(300))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/?secret", bytes.NewReader(said))
	if !assert.NoError(t, err) {
		return
	}
	rsp, err := stack.Call(ctx, r)
	if !assert.NoError(t, err) {
		return
	}
	switch rand.IntN(4) {
	case 0: // leaves
		cancel()
	case 1: // has enough, and reads on
		_, _ = io.ReadFull(rsp.Body, make([]byte, 5))
		_ = rsp.Body.Close()
		_, _ = rsp.Body.Read(make([]byte, 5))
	default:
		got, err := io.ReadAll(rsp.Body)
		assert.NoError(t, err)
		assert.True(t, bytes.Equal(said, got))
		assert.Equal(t, "0", rsp.Trailer.Get("Grpc-Status"))
	}
	_ = rsp.Body.Close()
}

func watchAWhile(ctx context.Context, reg *Registry) {
	if rand.IntN(4) == 0 {
		c, err := reg.count(&tappb.TopRequest{ByRoute: rand.IntN(2) == 0})
		if err == nil {
			time.Sleep(time.Millisecond)
			c.rows.answer(10)
			reg.detach(c)
		}
		return
	}
	req := &tappb.WatchRequest{
		Fields: rand.IntN(2) == 0, Explain: rand.IntN(2) == 0, BodyBytes: rand.Uint32N(1500),
		Limit: rand.Uint64N(20), Duration: durationpb.New(time.Duration(1 + rand.IntN(int(10*time.Millisecond)))),
	}
	if rand.IntN(2) == 0 {
		req.Response = &tappb.ResponseMatch{Failures: rand.IntN(2) == 0}
	}
	left := rand.IntN(30)
	for _, err := range reg.Watch(ctx, req) {
		if err != nil {
			return // there are too many, or it is over
		}
		if left--; left < 0 {
			return
		}
	}
}
