package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/tappb"
)

// Fields with secret names are withheld, and the secret parts of URIs. Options
// take precedence.
func TestShownFields(t *testing.T) {
	for name, tt := range map[string]struct {
		opts               []RegistryOption
		field, value, want string
	}{
		"after a secret":          {nil, "GrpcGateway-Authorization", "Bearer x", redacted},
		"binary":                  {nil, "authorization-bin", "x", redacted},
		"revealed":                {[]RegistryOption{WithRevealed("Set-Cookie")}, "set-cookie", "a=b", "a=b"},
		"query":                   {nil, "Location", "/callback?code=s3cret", "/callback?" + redacted},
		"fragment":                {nil, "location", "https://app/#token=s3cret", "https://app/#" + redacted},
		"no query":                {nil, "location", "/a?", "/a?"},
		"user":                    {nil, "referer", "https://me:s3cret@app/a@b?c@d", "https://app/a@b?" + redacted},
		"user without a scheme":   {nil, "referer", "//me:s3cret@app", "//app"},
		"no user":                 {nil, "referer", "/a//b@c", "/a//b@c"},
		"of a proxy":              {nil, "X-Original-URL", "/a?s3cret", "/a?" + redacted},
		"revealed queries":        {[]RegistryOption{WithRevealed("query")}, "location", "https://me:s3cret@app/a?b#c", "https://app/a?b#c"},
		"revealed parameters":     {[]RegistryOption{WithRevealed("query")}, "location", "/a?b=c&Api%5FKey=s3cret&d#e", "/a?b=c&Api%5FKey=" + redacted + "&d#e"},
		"revealed fragment":       {[]RegistryOption{WithRevealed("query")}, "location", "/a#b=c&access_token=s3cret", "/a#b=c&access_token=" + redacted},
		"revealed both":           {[]RegistryOption{WithRevealed("query")}, "location", "/a?token=s3cret#token=s3cret", "/a?token=" + redacted + "#token=" + redacted},
		"revealed parameter":      {[]RegistryOption{WithRevealed("query", "page_token")}, "location", "/a?page_token=2", "/a?page_token=2"},
		"api key":                 {nil, "X-Api-Key", "s3cret", redacted},
		"token":                   {nil, "X-Auth-Token", "s3cret", redacted},
		"client secret":           {nil, "Client_Secret", "s3cret", redacted},
		"password":                {nil, "X-Password-Hash", "s3cret", redacted},
		"credentials":             {nil, "X-Credentials", "s3cret", redacted},
		"revealed key":            {[]RegistryOption{WithRevealed("idempotency-key")}, "Idempotency-Key", "1", "1"},
		"revealed field":          {[]RegistryOption{WithRevealed("Location")}, "location", "/a?b", "/a?b"},
		"withheld field":          {[]RegistryOption{WithRedacted("Location")}, "location", "/a", redacted},
		"withheld host":           {[]RegistryOption{WithRedacted("host")}, "host", "a", redacted},
		"nothing special about":   {nil, "x-query", "/a?b", "/a?b"},
		"withheld queries, again": {[]RegistryOption{WithRevealed("query"), WithRedacted("query")}, "location", "/a?b", "/a?" + redacted},
	} {
		t.Run(name, func(t *testing.T) {
			got := NewRegistry(tt.opts...).capture([]Field{}, fields{{tt.field, tt.value}})
			require.Len(t, got, 1)
			require.Equal(t, tt.want, got[0].Value)
		})
	}
}

// A condition compares a value after its secret parts have been replaced, so that these
// cannot be found letter by letter.
func TestHeaderMatchSecretParts(t *testing.T) {
	s := sample()
	s.header = fields{{"Referer", "https://me:s3cret@app/a?code=s3cret"}, {"Host", "me:s3cret@app"}}
	for m, want := range map[*tappb.HeaderMatch]bool{
		beginning("referer", "https://app/a?"):     true,
		beginning("referer", "https://me:"):        false,
		beginning("referer", "https://app/a?code"): false,
		beginning("host", "me"):                    false,
		exactly("host", "app"):                     true,
	} {
		c, err := new(Registry).filter(nil, []*tappb.HeaderMatch{m})
		require.NoError(t, err)
		require.Equal(t, want, c.holds(s.view()), m.String())
	}
}

// The fields of HTTP/2 include its pseudo header fields.
func TestPseudoHeaders(t *testing.T) {
	for name, tt := range map[string]struct {
		opts  []RegistryOption
		proto int
		url   string
		want  []Field
	}{
		"HTTP/2": {nil, 2, "https://me:s3cret@web:80/a%2Fb?token=s3cret", []Field{
			{":method", "GET"}, {":scheme", "https"}, {":authority", "web:80"}, {":path", "/a%2Fb?" + redacted}, {"a", "1"}, {"a", "2"}, {"b", "3"},
		}},
		"without a query": {nil, 2, "http://web", []Field{
			{":method", "GET"}, {":scheme", "http"}, {":authority", "web"}, {":path", "/"}, {"a", "1"}, {"a", "2"}, {"b", "3"},
		}},
		"with its query": {[]RegistryOption{WithRevealed("query")}, 2, "http://web/?a=b", []Field{
			{":method", "GET"}, {":scheme", "http"}, {":authority", "web"}, {":path", "/?a=b"}, {"a", "1"}, {"a", "2"}, {"b", "3"},
		}},
		"HTTP/1": {nil, 1, "http://web/", []Field{{"a", "1"}, {"a", "2"}, {"b", "3"}}},
	} {
		t.Run(name, func(t *testing.T) {
			header := http.Header{"B": {"3"}, "A": {"1", "2"}, ":path": {"made up"}}
			if tt.proto == 1 {
				delete(header, ":path")
			}
			reg := NewRegistry(tt.opts...)
			w := watchOn(t, reg, &tappb.WatchRequest{Fields: true})
			svc := Layer(reg, httplayer.Accessor{})(layer.Func[*http.Request, *http.Response](
				func(_ context.Context, r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 204, ProtoMajor: tt.proto, Header: http.Header{"C": {"4"}}, Body: http.NoBody, Request: r}, nil
				}))
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, tt.url, nil)
			require.NoError(t, err)
			r.Header, r.ProtoMajor = header, tt.proto
			rsp, err := svc.Call(t.Context(), r)
			require.NoError(t, err)
			_ = rsp.Body.Close()
			got := events(w)
			require.Equal(t, "qre", kinds(got))
			require.Equal(t, tt.want, got[0].RequestInit.Headers)
			want := []Field{{":status", "204"}, {"c", "4"}}
			require.Equal(t, want[2-tt.proto:], got[1].ResponseInit.Headers)
		})
	}
}

func TestPseudoHeadersConnect(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{Fields: true})
	svc := Layer(reg, httplayer.Accessor{})(layer.Func[*http.Request, *http.Response](
		func(context.Context, *http.Request) (*http.Response, error) { return nil, io.EOF }))
	_, err := svc.Call(t.Context(), &http.Request{Method: http.MethodConnect, Host: "web:80", URL: &url.URL{}, ProtoMajor: 2})
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []Field{{":method", "CONNECT"}, {":authority", "web:80"}}, events(w)[0].RequestInit.Headers)
}

// withQuery reads requests that have a query in the path.
type withQuery struct{ fakeAccess }

func (withQuery) Query(*call) string { return "code=s3cret" }

// Explanations are shown without the secrets of the request.
func TestExplanationSecrets(t *testing.T) {
	c := get("/a")
	c.authority = "me:s3cret@web"
	c.header = fields{{"Authorization", "Bearer s3cret-token"}, {"X-Key", "s3cret-key"}, {"Cookie", "a"}, {"Cookie", `sid="s3cret-session"; theme=dark`}, {"X-Open", "open"}}
	say := func(next service) service {
		return serve(func(ctx context.Context, c *call) (*reply, error) {
			why := layer.PickInfoFromContext(ctx).Explanation
			inner := layer.Node{Name: "inner", State: layer.State{{Key: "url", Value: "http://me:s3cret@web/a?code=s3cret"}}}
			why.Add(layer.Node{Name: "choice", State: layer.State{
				{Key: "err", Value: errors.New("Get /a?code=s3cret: refused")},
				{Key: "because", Value: `header is "Bearer s3cret-token"`}, {Key: "token", Value: []string{"s3cret-token", "s3cret-key"}},
				{Key: "open", Value: "a is open in s3cret-session, dark"}, {Key: "to", Value: serverAddr}, {Key: "n", Value: 7},
			}, Children: []layer.Node{inner}, Next: &inner})
			return next.Call(ctx, c)
		})
	}
	reg := NewRegistry(WithRedacted("x-key"))
	w := watchOn(t, reg, &tappb.WatchRequest{Explain: true})
	svc := Explain[*call, *reply](reg)(say(Layer[*call, *reply](reg, withQuery{newAccess()})(respond("x"))))
	_, why := layer.Explain(t.Context())
	send(t, svc, c)
	require.Empty(t, why.Choices())
	got := events(w)[2].ResponseEnd.Explanation
	inner := layer.Node{Name: "inner", State: layer.State{{Key: "url", Value: "http://" + redacted + "web/a?" + redacted}}}
	require.Equal(t, []layer.Node{{Name: "choice", State: layer.State{
		{Key: "err", Value: "Get /a?" + redacted + ": refused"},
		{Key: "because", Value: `header is "` + redacted + `"`}, {Key: "token", Value: "[" + redacted + " " + redacted + "]"},
		{Key: "open", Value: "a is open in " + redacted + ", dark"}, {Key: "to", Value: serverAddr}, {Key: "n", Value: 7},
	}, Children: []layer.Node{inner}, Next: &inner}}, got)
}

// quotedQuery reads requests that have an invalid URL as the query.
type quotedQuery struct{ fakeAccess }

func (quotedQuery) Query(*call) string { return `code="s3cret\xff"` }

// An error quotes a URL, and a field, by Go's rules.
func TestExplanationQuotedSecrets(t *testing.T) {
	c := get("/a")
	c.header = fields{{"Authorization", `Digest "s3cret"`}}
	broken := &url.Error{Op: "Get", URL: "http://web/a?" + quotedQuery{}.Query(c), Err: io.EOF}
	say := func(next service) service {
		return serve(func(ctx context.Context, c *call) (*reply, error) {
			layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "choice", State: layer.State{
				{Key: "err", Value: broken}, {Key: "field", Value: fmt.Sprintf("no good: %q", c.header.Get("Authorization"))},
			}})
			return next.Call(ctx, c)
		})
	}
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{Explain: true})
	send(t, Explain[*call, *reply](reg)(say(Layer[*call, *reply](reg, quotedQuery{newAccess()})(respond("x")))), c)
	require.Equal(t, []layer.Node{{Name: "choice", State: layer.State{
		{Key: "err", Value: `Get "http://web/a?` + redacted + `": EOF`}, {Key: "field", Value: `no good: "` + redacted + `"`},
	}}}, events(w)[2].ResponseEnd.Explanation)
}
