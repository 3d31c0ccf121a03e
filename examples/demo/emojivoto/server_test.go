package emojivoto

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestCatalogue(t *testing.T) {
	methods := map[string]bool{}
	for _, e := range Catalogue() {
		method := VoteMethod(e.Shortcode)
		require.Regexp(t, `^:[a-z_]+:$`, e.Shortcode)
		require.Regexp(t, `^Vote([A-Z][a-z]+)+$`, method)
		require.NotEmpty(t, e.Unicode)
		for _, s := range []string{e.Shortcode, e.Unicode, method} {
			require.False(t, methods[s], "%s is there twice", s)
			methods[s] = true
		}
	}
	require.GreaterOrEqual(t, len(Catalogue()), 12)
	require.True(t, methods[Doughnut] && methods["VoteDoughnut"] && methods["VoteRocket"] && methods["VoteHotPepper"])
}

func TestVoteMethodUnusualInput(t *testing.T) {
	for in, want := range map[string]string{"": "Vote", "::": "Vote", "a__b": "VoteAB", ":_x_:": "VoteX"} {
		require.Equal(t, want, VoteMethod(in), in)
	}
}

func TestEmojiServiceOverGRPC(t *testing.T) {
	s := NewEmojiServer(nil)
	conn := dialled(t, s.Register)
	list := &structpb.ListValue{}
	require.NoError(t, conn.Invoke(t.Context(), "/emojivoto.v1.EmojiService/ListAll", &emptypb.Empty{}, list))
	require.Len(t, list.GetValues(), len(Catalogue()))
	require.Equal(t, map[string]any{"shortcode": ":doughnut:", "unicode": "🍩"}, list.AsSlice()[0])

	unicode := &wrapperspb.StringValue{}
	find := "/emojivoto.v1.EmojiService/FindByShortcode"
	require.NoError(t, conn.Invoke(t.Context(), find, wrapperspb.String(":crab:"), unicode))
	require.Equal(t, "🦀", unicode.GetValue())
	err := conn.Invoke(t.Context(), find, wrapperspb.String(":nobody:"), unicode)
	require.Equal(t, codes.NotFound, status.Code(err))

	require.Equal(t, map[string]uint64{"ListAll": 1, "FindByShortcode": 2}, s.Counts())
	require.EqualValues(t, 3, s.Requests())
}

func TestVotingServiceOverGRPC(t *testing.T) {
	tally := NewTally()
	one, two := NewVotingServer(tally, nil), NewVotingServer(tally, nil)
	conns := []*grpc.ClientConn{dialled(t, one.Register), dialled(t, two.Register)}
	for i, e := range Catalogue() {
		err := conns[i%2].Invoke(t.Context(), "/emojivoto.v1.VotingService/"+VoteMethod(e.Shortcode), &emptypb.Empty{}, &emptypb.Empty{})
		if e.Shortcode == Doughnut {
			require.Equal(t, "rpc error: code = Unknown desc = ERROR", err.Error())
			continue
		}
		require.NoError(t, err, e.Shortcode)
	}
	require.NoError(t, conns[0].Invoke(t.Context(), "/emojivoto.v1.VotingService/VoteCrab", &emptypb.Empty{}, &emptypb.Empty{}))

	// Either replica knows both replicas' votes. The doughnut has none.
	for _, conn := range conns {
		results := &structpb.ListValue{}
		require.NoError(t, conn.Invoke(t.Context(), "/emojivoto.v1.VotingService/Results", &emptypb.Empty{}, results))
		require.Len(t, results.GetValues(), len(Catalogue())-1)
		require.Equal(t, map[string]any{"shortcode": ":crab:", "votes": 2.0}, results.AsSlice()[0])
	}
	require.EqualValues(t, 1, one.Counts()["VoteDoughnut"])
	require.EqualValues(t, len(Catalogue())/2+2, one.Requests())
	require.EqualValues(t, len(Catalogue())/2+1, two.Requests())

	err := conns[0].Invoke(t.Context(), "/emojivoto.v1.VotingService/VoteNobody", &emptypb.Empty{}, &emptypb.Empty{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
}

// Handlers written by hand behave like generated ones: they call the interceptor with the method's
// name, and reject requests that they cannot decode.
func TestHandlersMatchGeneratedCode(t *testing.T) {
	var mu sync.Mutex
	var methods []string
	watch := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		methods = append(methods, info.FullMethod)
		return next(ctx, req)
	}
	s := NewEmojiServer(nil)
	conn := dialled(t, s.Register, grpc.UnaryInterceptor(watch))
	require.NoError(t, conn.Invoke(t.Context(), "/emojivoto.v1.EmojiService/ListAll", &emptypb.Empty{}, &structpb.ListValue{}))
	require.Equal(t, []string{"/emojivoto.v1.EmojiService/ListAll"}, methods)

	// Like the string, the bytes are length-delimited in field 1, but they are not valid UTF-8.
	err := conn.Invoke(t.Context(), "/emojivoto.v1.EmojiService/FindByShortcode", wrapperspb.Bytes([]byte{0xff}), &emptypb.Empty{})
	require.Equal(t, codes.Internal, status.Code(err))
	require.EqualValues(t, 1, s.Requests(), "a call that cannot be decoded does not count as a request")
}

func TestSlowReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newReplica(always(100 * time.Millisecond))
		began := time.Now()
		require.NoError(t, slow.pause(t.Context()))
		require.Equal(t, 100*time.Millisecond, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		began = time.Now()
		require.Equal(t, codes.DeadlineExceeded, status.Code(slow.pause(ctx)))
		require.Equal(t, 30*time.Millisecond, time.Since(began))

		began = time.Now()
		for _, none := range []func() time.Duration{nil, always(0), always(-1)} {
			quick := newReplica(none)
			require.NoError(t, quick.pause(ctx), "a replica without latency does not look at the context")
		}
		require.Zero(t, time.Since(began))
	})
}

// A canceled caller leaves no request open: dialled's server would wait for it.
func TestSlowReplicaCanceled(t *testing.T) {
	s := NewVotingServer(NewTally(), always(time.Hour))
	conn := dialled(t, s.Register)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := conn.Invoke(ctx, "/emojivoto.v1.VotingService/VoteCrab", &emptypb.Empty{}, &emptypb.Empty{})
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.Empty(t, s.tally.Results(), "a vote that was given up is not counted")
}

func TestTally(t *testing.T) {
	tally := NewTally()
	require.Empty(t, tally.Results())
	var voters sync.WaitGroup
	for shortcode := range strings.FieldsSeq(":b: :a: :c: :c: :a: :b: :c:") {
		voters.Go(func() {
			for range 100 {
				tally.Vote(shortcode)
				tally.Results()
			}
		})
	}
	voters.Wait()
	require.Equal(t, []Result{{":c:", 300}, {":a:", 200}, {":b:", 200}}, tally.Results())
}
