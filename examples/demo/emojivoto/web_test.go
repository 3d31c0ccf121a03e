package emojivoto

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func fetch(t *testing.T, front *httptest.Server, method, path string) (status int, contentType, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, front.URL+path, http.NoBody)
	require.NoError(t, err)
	rsp, err := front.Client().Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	b, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp.StatusCode, rsp.Header.Get("Content-Type"), string(b)
}

func TestWeb(t *testing.T) {
	a := newApp(t)
	for _, c := range []struct {
		method, path string
		status       int
		body         string // "" means any
	}{
		{"GET", "/api/leaderboard", 200, `[]`},
		{"GET", "/api/vote?choice=:rocket:", 200, `{"shortcode":":rocket:","unicode":"🚀"}`},
		{"GET", "/api/vote?choice=:hot_pepper:", 200, `{"shortcode":":hot_pepper:","unicode":"🌶"}`},
		{"GET", "/api/vote?choice=%3Arocket%3A", 200, `{"shortcode":":rocket:","unicode":"🚀"}`},
		{"GET", "/api/vote?choice=:doughnut:", 500, `{"code":"Unknown","error":"VoteDoughnut: ERROR"}`},
		{"GET", "/api/leaderboard", 200, `[{"shortcode":":rocket:","unicode":"🚀","votes":2},{"shortcode":":hot_pepper:","unicode":"🌶","votes":1}]`},
		{"GET", "/api/vote", 400, `{"code":"InvalidArgument","error":"choice is missing"}`},
		{"GET", "/api/vote?choice=:nobody:", 404, `{"code":"NotFound","error":"FindByShortcode: no emoji \":nobody:\""}`},
		{"POST", "/api/vote?choice=:rocket:", 405, ""},
		{"GET", "/", 404, ""},
	} {
		got, contentType, body := fetch(t, a.front, c.method, c.path)
		require.Equal(t, c.status, got, c.path)
		if c.body != "" {
			require.JSONEq(t, c.body, body, c.path)
			require.Equal(t, "application/json", contentType)
		}
	}

	_, _, body := fetch(t, a.front, "GET", "/api/list")
	var list []Emoji
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	require.Equal(t, Catalogue(), list)

	// The front's requests behind its pages.
	require.Equal(t, map[string]uint64{"FindByShortcode": 5, "ListAll": 3}, a.emoji.Counts())
	require.Equal(t, map[string]uint64{"Results": 2, "VoteRocket": 2, "VoteHotPepper": 1, "VoteDoughnut": 1}, a.voting.Counts())
}

// refusing is a connection on which some methods fail.
type refusing struct {
	grpc.ClientConnInterface
	method string
	err    error
}

func (r refusing) Invoke(ctx context.Context, method string, req, rsp any, opts ...grpc.CallOption) error {
	if method == r.method {
		return r.err
	}
	return r.ClientConnInterface.Invoke(ctx, method, req, rsp, opts...)
}

func TestWebServiceFailure(t *testing.T) {
	emoji, voting := dialled(t, NewEmojiServer(nil).Register), dialled(t, NewVotingServer(NewTally(), nil).Register)
	for _, c := range []struct{ method, path, error string }{
		{fullMethod(EmojiService, "ListAll"), "/api/list", "ListAll: gone"},
		{fullMethod(EmojiService, "ListAll"), "/api/leaderboard", "ListAll: gone"},
		{fullMethod(VotingService, "Results"), "/api/leaderboard", "Results: gone"},
		{fullMethod(EmojiService, "FindByShortcode"), "/api/vote?choice=:crab:", "FindByShortcode: gone"},
		{fullMethod(VotingService, "VoteCrab"), "/api/vote?choice=:crab:", "VoteCrab: gone"},
	} {
		gone := status.Error(codes.Unavailable, "gone")
		front := httptest.NewServer(NewWeb(refusing{emoji, c.method, gone}, refusing{voting, c.method, gone}))
		got, _, body := fetch(t, front, "GET", c.path)
		front.Close()
		require.Equal(t, 500, got, c.path)
		require.JSONEq(t, `{"code":"Unavailable","error":"`+c.error+`"}`, body)
	}
}

// The front forwards its client's cancellation.
func TestWebClientCancels(t *testing.T) {
	entered, left := make(chan struct{}), make(chan error, 1)
	front := httptest.NewServer(NewWeb(blocking{entered, left}, nil))
	defer front.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL+"/api/list", http.NoBody)
	require.NoError(t, err)
	rsp, err := front.Client().Do(req)
	if err == nil {
		rsp.Body.Close()
	}
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, <-left, context.Canceled)
}

// blocking is a connection on which every request lasts until it is canceled.
type blocking struct {
	entered chan struct{}
	left    chan error
}

func (b blocking) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	close(b.entered)
	<-ctx.Done()
	b.left <- ctx.Err()
	return ctx.Err()
}

func (b blocking) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

// Each emoji in the list has a method to vote for it and appears on the leaderboard, except the
// doughnut.
func TestVoteMethods(t *testing.T) {
	a := newApp(t)
	for _, e := range Catalogue() {
		before := a.voting.Counts()[VoteMethod(e.Shortcode)]
		got, _, body := fetch(t, a.front, "GET", votePath(e.Shortcode))
		if e.Shortcode == Doughnut {
			require.Equal(t, 500, got)
		} else {
			require.Equal(t, 200, got, body)
			require.Contains(t, a.tally.Results(), Result{e.Shortcode, 1})
		}
		require.Equal(t, before+1, a.voting.Counts()[VoteMethod(e.Shortcode)])
	}
	_, _, body := fetch(t, a.front, "GET", "/api/leaderboard")
	var board []map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &board))
	require.Len(t, board, len(Catalogue())-1)
	require.NotContains(t, body, Doughnut)
}
