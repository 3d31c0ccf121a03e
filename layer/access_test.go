package layer_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestHeaderMutationValid(t *testing.T) {
	assert.True(t, layer.HeaderMutation{}.Empty())
	require.NoError(t, layer.HeaderMutation{}.Validate())
	c := layer.HeaderMutation{
		Add:    []layer.HeaderField{{"X-Via", "gate way"}, {"x!#$%&'*+-.^_`|~", ""}, {"X-Tab", "a\tb"}, {"X-Name", "Jürgen"}},
		Set:    []layer.HeaderField{{"user-agent", "x"}, {"Host", "web:80"}, {"HOST", "[::1]:80"}},
		Remove: []string{"Cookie"},
	}
	for _, host := range []string{"web", "web.example.com.", "10.0.0.1:8080", "[::1]", "a_b-c:1"} {
		c.Set = append(c.Set, layer.HeaderField{Name: "host", Value: host})
	}
	valid, problems := c.Valid()
	assert.Empty(t, problems)
	assert.Equal(t, c, valid)
	for _, only := range []layer.HeaderMutation{{Add: c.Add}, {Set: c.Set}, {Remove: c.Remove}} {
		assert.False(t, only.Empty())
	}
}

func TestHeaderMutationInvalid(t *testing.T) {
	fine := layer.HeaderField{Name: "X-Fine", Value: "1"}
	for _, tt := range []struct{ name, value, why string }{
		{"", "1", "name must consist"},
		{"a b", "1", "name must consist"},
		{":path", "/", "name must consist"},
		{"X-Ü", "1", "name must consist"},
		{"X\x00", "1", "name must consist"},
		{"X-A\r\nX-B", "1", "name must consist"},
		{"X-A", "1\r\nX-B: 2", "control character"},
		{"X-A", "1\n", "control character"},
		{"X-A", "\x00", "control character"},
		{"X-A", "\x7f", "control character"},
		{"connection", "close", "belongs to the connection"},
		{"Transfer-Encoding", "chunked", "belongs to the connection"},
		{"Content-Length", "0", "belongs to the connection"},
		{"Upgrade", "h2c", "belongs to the connection"},
		{"TE", "trailers", "belongs to the connection"},
		{"host", "", "not a host"},
		{"host", "web/", "not a host"},
		{"host", "user@web", "not a host"},
		{"host", "web:", "not a host"},
		{"host", "web:0", "not a host"},
		{"host", "web:65536", "not a host"},
		{"host", "a:b:1", "not a host"},
		{"host", "::1", "not a host"},
		{"host", "[::1", "not a host"},
		{"host", "[10.0.0.1]:80", "not a host"},
		{"host", "[fe80::1%eth0]", "not a host"},
		{"host", "a b", "not a host"},
	} {
		bad := layer.HeaderField{Name: tt.name, Value: tt.value}
		c := layer.HeaderMutation{Set: []layer.HeaderField{bad, fine}}
		require.ErrorContains(t, c.Validate(), tt.why, "%q: %q", tt.name, tt.value)
		valid, problems := c.Valid()
		assert.Len(t, problems, 1)
		assert.Equal(t, layer.HeaderMutation{Set: []layer.HeaderField{fine}}.Set, valid.Set)
		assert.Equal(t, bad, c.Set[0], "what was given stays as it was")
	}
	c := layer.HeaderMutation{Add: []layer.HeaderField{{"Host", "web"}, fine}, Remove: []string{"host", "Trailer", "Cookie"}}
	valid, problems := c.Valid()
	assert.Len(t, problems, 3)
	assert.Equal(t, []layer.HeaderField{fine}, valid.Add)
	assert.Equal(t, []string{"Cookie"}, valid.Remove)
	require.ErrorContains(t, c.Validate(), `add "Host": can only be set, not added or removed`)
	require.ErrorContains(t, c.Validate(), `remove "Trailer"`)

	secret := layer.HeaderMutation{Set: []layer.HeaderField{{"Authorization", "Bearer x\n"}}}
	require.EqualError(t, secret.Validate(), `set "Authorization": the value has a control character`)
}
