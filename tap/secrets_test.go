package tap

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/layer"
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
	svc := Explain[*bodied, *reply](reg)(Layer[*bodied, *reply](reg, newTee(), Outbound, WithDestination(serverAddr, podLabels))(
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
