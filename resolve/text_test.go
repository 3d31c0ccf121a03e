package resolve

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStrings(t *testing.T) {
	for want, v := range map[string]interface{ String() string }{
		"replace": Replace, "add": Add, "remove": Remove, "empty": Empty, "does not exist": DoesNotExist, "kind 0": Kind(0),
		"pending": StatePending, "exists": StateExists, "state 9": State(9),
		"unknown": Unknown, "h2": H2, "opaque": Opaque, "protocol 7": Protocol(7),
	} {
		assert.Equal(t, want, v.String())
	}
	assert.Equal(t, "empty", StateEmpty.String())
	assert.Equal(t, "does not exist", StateDoesNotExist.String())
}

func TestEndpointAsJSON(t *testing.T) {
	e := at(a1)
	e.Protocol, e.Weight, e.Labels = Opaque, 10_000, map[string]string{"pod": "a"}
	data, err := json.Marshal(e)
	require.NoError(t, err)
	assert.Contains(t, string(data), `"Protocol":"opaque"`)

	var back Endpoint
	require.NoError(t, json.Unmarshal(data, &back))
	assert.Equal(t, e, back)

	data, err = json.Marshal(map[string]State{"web": StateDoesNotExist})
	require.NoError(t, err)
	assert.JSONEq(t, `{"web":"does not exist"}`, string(data))
}

func TestProtocolText(t *testing.T) {
	for _, p := range []Protocol{Unknown, H2, Opaque} {
		text, err := p.MarshalText()
		require.NoError(t, err)
		back := Protocol(9)
		require.NoError(t, back.UnmarshalText(text))
		assert.Equal(t, p, back)
	}
	p := H2
	require.NoError(t, p.UnmarshalText(nil))
	assert.Equal(t, Unknown, p)

	err := p.UnmarshalText([]byte("http3"))
	require.ErrorContains(t, err, `protocol "http3" is not`)
}
