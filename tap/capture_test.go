package tap

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// The secrets of any request are withheld from Observe, from Watch over gRPC
// and in the process, without bodies and with redacted bodies.
func FuzzSecrets(f *testing.F) {
	f.Add([]byte("12345678"), "x-plain", "value", "web:80", "/path", "the body", uint8(0), uint16(9))
	f.Add([]byte("\x00\xff"), "COOKIE", "a=b; ", "a@b@c", "//u:p@h/", "", uint8(0xff), uint16(0))
	f.Add([]byte("aaaaaaaaaaaa"), "Authorization", "Bearer ", "", "/", strings.Repeat("x", 600), uint8(0x55), uint16(1000))
	f.Add([]byte{}, ":authority", "u:p@web", "@", "*", "\xff\xfe", uint8(0xaa), uint16(3))
	f.Fuzz(func(t *testing.T, token []byte, name, value, host, path, body string, how uint8, most uint16) {
		secret := "s3cret" + hex.EncodeToString(token) + "t3rces"
		for _, open := range []string{name, value, host, path} {
			if strings.Contains(strings.ToLower(open), "s3cret") {
				t.Skip("is no secret")
			}
		}
		c := secretCase{secret: secret, how: how, body: body + secret + body}
		c.header = c.fields(name, value)
		c.authority = []string{"user:" + secret + "@" + host, secret + "@" + host, host + "@" + secret + "@", secret + ":" + secret + "@"}[how%4]
		if strings.Contains(host, "@") || how%4 == 2 {
			c.authority += "@h"
		}
		for _, bodies := range []bool{false, true} {
			for _, out := range c.outputs(t, path, bodies, uint32(most)) {
				require.NotContains(t, out, secret)
				require.NotContains(t, out, "s3cret")
			}
		}
	})
}

type secretCase struct {
	secret, authority, body string
	header                  fields
	how                     uint8
}

// fields returns fields that contain the secret in each withheld field.
func (c *secretCase) fields(name, value string) fields {
	all := fields{{name, value}}
	for i, secret := range []string{"authorization", "Cookie", "Set-Cookie", "PROXY-AUTHORIZATION"} {
		if c.how&(1<<i) != 0 {
			secret = strings.ToUpper(secret)
		}
		all = append(all, [2]string{secret, value + c.secret}, [2]string{secret, c.secret}, [2]string{name, value})
	}
	return append(all,
		[2]string{"Host", "user:" + c.secret + "@host"}, [2]string{":authority", c.secret + "@host"},
		[2]string{"Referer", "https://" + c.secret + "@host/?q=" + c.secret}, [2]string{"Location", value + "#" + c.secret},
		[2]string{"grpcgateway-authorization", value + c.secret}, [2]string{"content-type", "text/plain"})
}

// outputs returns all bytes that are sent when one request is watched in each way.
func (c *secretCase) outputs(t *testing.T, path string, bodies bool, most uint32) []string {
	reg := new(Registry)
	watch := &tappb.WatchRequest{Limit: 1, Fields: true, Explain: true}
	if bodies {
		reg = NewRegistry(WithBodies(1<<10, func(_ string, body []byte) []byte {
			return []byte(strings.Repeat("through the hook", len(body)%3))
		}))
		watch.BodyBytes = most
	}
	srv := NewServer(reg, WithAllowRemote())
	held := proto.CloneOf(watch)
	held.Response = &tappb.ResponseMatch{}
	var mu sync.Mutex
	var out []string
	say := func(m proto.Message) error {
		b, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		arrived := m.ProtoReflect().New().Interface()
		err = proto.Unmarshal(b, arrived)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, string(b), arrived.(interface{ String() string }).String())
		return err
	}
	var all sync.WaitGroup
	run := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	run(func() error {
		return srv.Observe(&pb.ObserveRequest{Limit: 1, Match: match.All(), Extract: match.Headers()}, observeStream{memoryStream{ctx: t.Context()}, say})
	})
	for _, req := range []*tappb.WatchRequest{watch, held} {
		run(func() error {
			return gotowerTap{server: srv}.Watch(req, watchStream{ctx: t.Context(), trailer: new(metadata.MD), send: func(m *tappb.WatchResponse) error { return say(m) }})
		})
		run(func() error {
			for e, err := range reg.Watch(t.Context(), req) {
				if err != nil {
					return err
				}
				mu.Lock()
				out = append(out, dump(e))
				mu.Unlock()
			}
			return nil
		})
	}
	for reg.Describe().State.Get("watching") != 5 {
		runtime.Gosched()
	}
	c.request(t, reg, path)
	all.Wait()
	return append(out, reg.Describe().String())
}

type observeStream struct {
	memoryStream
	say func(proto.Message) error
}

func (s observeStream) Send(m *pb.TapEvent) error { return s.say(m) }

// dump returns all values of an event.
func dump(e Event) string {
	b, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	if end := e.ResponseEnd; end != nil {
		for _, body := range []*Body{end.RequestBody, end.ResponseBody} {
			if body != nil {
				b = append(b, body.Data...)
			}
		}
	}
	return string(b)
}

func (c *secretCase) request(t *testing.T, reg *Registry, path string) {
	t.Helper()
	svc := Explain(reg, newTee())(Layer[*bodied, *reply](reg, newTee(), Outbound, WithDestination(serverAddr, podLabels))(
		layer.Func[*bodied, *reply](func(ctx context.Context, b *bodied) (*reply, error) {
			require.Equal(t, c.header, b.header, "the service gets what was sent")
			layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "n", State: layer.State{
				{Key: "err", Value: fmt.Errorf("%s of %s", c.secret, c.authority)},
			}})
			said, err := io.ReadAll(b.Body)
			require.Equal(t, c.body, string(said))
			return &reply{
				status: 200, header: c.header, trailer: append(fields{{"grpc-status", "0"}}, c.header...),
				Body: io.NopCloser(strings.NewReader(c.body)),
			}, err
		})))
	req := saying(c.body)
	req.path, req.authority, req.header = path, c.authority, c.header
	rsp, err := svc.Call(t.Context(), req)
	require.NoError(t, err)
	said, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, c.body, string(said))
}

// FuzzSecrets detects a secret in each place: here each of them is revealed.
func TestFuzzSecretsDetectsLeaks(t *testing.T) {
	c := secretCase{secret: "s3cret"}
	c.header = c.fields("x-open", "s3cret")
	require.Contains(t, strings.Join(c.outputs(t, "/", false, 0), ""), "s3cret")
	c = secretCase{body: "s3cret", header: fields{}}
	reg := NewRegistry(WithBodies(1<<10, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 100})
	c.request(t, reg, "/")
	var all string
	for _, e := range readAll(w) {
		all += dump(e)
	}
	require.Equal(t, 2, strings.Count(all, "s3cret"))
}

// A condition cannot find a secret letter by letter.
func TestSecretsCannotBeGuessed(t *testing.T) {
	for _, name := range []string{"authorization", "Cookie", "SET-COOKIE", "Proxy-Authorization"} {
		for _, m := range []*tappb.HeaderMatch{exactly(name, "s"), beginning(name, "s")} {
			_, err := new(Registry).filter(nil, []*tappb.HeaderMatch{m})
			require.ErrorContains(t, err, "withheld")
		}
	}
	c, err := compile(match.AuthorityPrefix("user:"))
	require.NoError(t, err)
	s := sample()
	s.authority = "user:s3cret@web"
	require.False(t, c.holds(s.view()))
}

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
		"link":                    {nil, "Link", "</a?token=s3cret>; rel=a, <https://me:s3cret@b/?q#c>", "</a?" + redacted + ">; rel=a, <https://b/?" + redacted + ">"},
		"link of revealed":        {[]RegistryOption{WithRevealed("query")}, "Link", "</a?token=s3cret&p=2>; rel=a", "</a?token=" + redacted + "&p=2>; rel=a"},
		"broken link":             {nil, "link", "</a?s3cret", "</a?" + redacted},
		"parameters of a link":    {nil, "link", "</a>; b?s3cret", "</a>; b?" + redacted},
		"other URL":               {nil, "HX-Current-URL", "https://a/?s3cret", "https://a/?" + redacted},
		"words":                   {nil, "X_Authorization", "s3cret", redacted},
		"URL in a message":        {nil, "grpc-message", "Get https://me:s3cret@a/?token=s3cret: refused", "Get https://a/?token=" + redacted + " refused"},
		"pairs":                   {nil, "baggage", "user=bob,session.id=s3cret", "user=bob,session.id=" + redacted},
		"no secret":               {nil, "X-Author", "Monkey", "Monkey"},
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
			svc := Layer(reg, httplayer.HTTP{})(layer.Func[*http.Request, *http.Response](
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
	svc := Layer(reg, httplayer.HTTP{})(layer.Func[*http.Request, *http.Response](
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
	svc := Explain(reg, newAccess())(say(Layer[*call, *reply](reg, withQuery{newAccess()})(respond("x"))))
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
	send(t, Explain(reg, newAccess())(say(Layer[*call, *reply](reg, quotedQuery{newAccess()})(respond("x")))), c)
	require.Equal(t, []layer.Node{{Name: "choice", State: layer.State{
		{Key: "err", Value: `Get "http://web/a?` + redacted + `": EOF`}, {Key: "field", Value: `no good: "` + redacted + `"`},
	}}}, events(w)[2].ResponseEnd.Explanation)
}
