package resolve

import (
	"context"
	"iter"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// echo is a resolver that says which target it was given, as an error.
func echo(name string) Resolver {
	return Func(func(_ context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) { yield(Update{}, echoed(name+" got "+target)) }
	})
}

type echoed string

func (e echoed) Error() string { return string(e) }

func said(t *testing.T, r Resolver, target string) error {
	var errs []error
	for _, err := range r.Resolve(t.Context(), target) {
		errs = append(errs, err)
	}
	require.Len(t, errs, 1)
	return errs[0]
}

func TestRegistryGivesTheRestByteForByte(t *testing.T) {
	g := NewRegistry()
	for _, scheme := range []string{"static", "DNS", "file", "l5d", "x+y-z.1"} {
		require.NoError(t, g.Register(scheme, echo(scheme)))
	}
	for target, want := range map[string]string{
		"static://web:80":     "static got web:80",
		"dns://name:port":     "DNS got name:port",
		"DnS://Name":          "DNS got Name",
		"file://etc/web":      "file got etc/web",
		"file:///etc/web":     "file got /etc/web",
		"file:////etc//web/":  "file got //etc//web/",
		"static://":           "static got ",
		"static://a://b":      "static got a://b",
		"l5d://web%20a?x=1#y": "l5d got web%20a?x=1#y",
		"x+y-z.1://q":         "x+y-z.1 got q",
	} {
		assert.EqualError(t, said(t, g, target), want, target)
	}
	assert.Equal(t, []string{"dns", "file", "l5d", "static", "x+y-z.1"}, g.Schemes())
}

func TestRegistryWithoutAResolver(t *testing.T) {
	var g Registry
	err := said(t, &g, "web:80")
	require.ErrorIs(t, err, ErrUnresolvable)
	require.EqualError(t, err, `resolve "web:80": no scheme; none is known: not a name that this resolver resolves`)
	require.NoError(t, g.Register("static", echo("static")))
	require.NoError(t, g.Register("dns", echo("dns")))
	for target, want := range map[string]string{
		"web:80":      `resolve "web:80": no scheme; known are dns://, static://`,
		"":            `resolve "": no scheme; known`,
		"://web":      `resolve "://web": no scheme; known`,
		"dns:/web":    `resolve "dns:/web": no scheme; known`,
		"1dns://web":  `resolve "1dns://web": no scheme; known`,
		"a b://web":   `resolve "a b://web": no scheme; known`,
		"Consul://db": `resolve "Consul://db": unknown scheme "consul"; known are dns://, static://`,
	} {
		err := said(t, &g, target)
		require.ErrorIs(t, err, ErrUnresolvable)
		require.ErrorContains(t, err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range g.Resolve(ctx, "web") {
		t.Error("an item, though the context had ended")
	}

	g.Default(echo("default"))
	assert.EqualError(t, said(t, &g, "web:80"), "default got web:80")
	assert.EqualError(t, said(t, &g, "consul://db"), "default got consul://db")
	assert.EqualError(t, said(t, &g, "dns://db"), "dns got db")
	g.Default(nil)
	require.ErrorIs(t, said(t, &g, "web:80"), ErrUnresolvable)
}

func TestRegisterRefuses(t *testing.T) {
	g := NewRegistry()
	require.NoError(t, g.Register("dns", echo("first")))
	require.EqualError(t, g.Register("DNS", echo("second")), `resolve: register "dns": has a resolver already`)
	require.EqualError(t, g.Register("file", nil), `resolve: register "file": no resolver`)
	for _, bad := range []string{"", "1a", "a b", "dns://", "dns:", "é", "-x", "a_b", "a/b", "[", "@a", "a{"} {
		require.ErrorContains(t, g.Register(bad, echo("bad")), "not a scheme", "%q", bad)
	}
	assert.Equal(t, []string{"dns"}, g.Schemes())
	assert.EqualError(t, said(t, g, "dns://web"), "first got web")
}

func TestRegistryIsSafeForConcurrentUse(t *testing.T) {
	var g Registry
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 50 {
				_ = g.Register(strings.Repeat("a", 1+n), echo("a"))
				g.Default(echo("default"))
				g.Schemes()
				for range g.Resolve(t.Context(), "aaa://web") {
				}
			}
		})
	}
	all.Wait()
	assert.Len(t, g.Schemes(), 8)
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"dns://web:80", "web:80", "file:///x", "://", "a://b://c", "A+1://", "é://x", "1://"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		scheme, rest, ok := splitTarget(target)
		if !ok {
			require.Empty(t, scheme+rest)
			before, _, cut := strings.Cut(target, "://")
			require.False(t, cut && isScheme(before))
			return
		}
		require.True(t, strings.EqualFold(scheme+"://"+rest, scheme+"://"+target[len(scheme)+3:]))
		require.True(t, strings.HasSuffix(target, "://"+rest), "the rest is as it was")
		require.Equal(t, strings.ToLower(scheme), scheme)
		var g Registry
		require.NoError(t, g.Register(scheme, echo("it")))
		require.Error(t, g.Register(strings.ToUpper(scheme), echo("it")))
		require.EqualError(t, said(t, &g, target), "it got "+rest)
	})
}
