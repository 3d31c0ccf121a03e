package grpclayer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

func TestInvalidArguments(t *testing.T) {
	const scheme = "must be a letter from a to z, then such letters, digits, '+', '-' or '.'"
	for message, construct := range map[string]func(){
		"grpclayer: nil resolver":             func() { NewResolver(name, nil) },
		"grpclayer: scheme \"\" " + scheme:    func() { NewResolver("", newSource()) },
		"grpclayer: scheme \"Web\" " + scheme: func() { DialOptions("Web", newSource()) },
		"grpclayer: scheme \"1a\" " + scheme:  func() { DialOptions("1a", newSource()) },
		"grpclayer: scheme \"a_b\" " + scheme: func() { DialOptions("a_b", newSource()) },
		"grpclayer: empty name of a balancer": func() { NewBalancer("") },
	} {
		t.Run(message, func(t *testing.T) { require.PanicsWithValue(t, message, construct) })
	}
	require.PanicsWithValue(t, "grpclayer: nil resolver", func() { DialOptions(name, nil) })
	require.NotPanics(t, func() {
		DialOptions("a+1.b-z", newSource(), nil, WithEndpointLayer(nil), WithCallLayer(nil), WithOnBalancer(nil), WithBalance(balance.Config{}, nil))
		NewClient(nil)
		NewServer(nil)
	})
}

func TestControlDefaults(t *testing.T) {
	c, err := ControlPlaneConfig{Addr: "web:80"}.checked()
	require.NoError(t, err)
	assert.Equal(t, 30*time.Second, c.FailFast)
	assert.Equal(t, 1000, c.QueueCapacity)
	assert.Equal(t, 10*time.Second, c.KeepAlive)
	assert.Equal(t, time.Second, c.ConnectTimeout)
	assert.Equal(t, layer.Backoff{Min: 100 * time.Millisecond, Max: time.Minute, Jitter: 0.1}, c.Backoff)
	assert.NotNil(t, c.Resolver)
	assert.NotNil(t, c.Log)

	c, err = ControlPlaneConfig{Addr: "web:80", QueueCapacity: -1, FailFast: -1}.checked()
	require.NoError(t, err)
	assert.Zero(t, c.QueueCapacity)
	assert.Zero(t, c.FailFast)

	_, err = NewControlPlaneConn(t.Context(), ControlPlaneConfig{Addr: "web:80", Backoff: layer.Backoff{Min: -1}})
	require.EqualError(t, err, "grpclayer: control: backoff: min -1ns must be more than 0")
}
