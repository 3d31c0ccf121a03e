package redirect

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fake is a machine with some binaries.
type fake struct {
	has  []string
	dump string
	fail string // what the command has that fails
	ran  []string
}

func (f *fake) program(m Mode) Program {
	return Program{
		Mode: m, Families: []Family{IPv4, IPv6}, Log: slog.New(slog.DiscardHandler), Out: io.Discard,
		LookPath: func(name string) (string, error) {
			if slices.Contains(f.has, name) {
				return name, nil
			}
			return "", errors.New("not found")
		},
		Run: func(_ context.Context, argv []string) ([]byte, error) {
			line := strings.Join(argv, " ")
			f.ran = append(f.ran, line)
			if f.fail != "" && strings.Contains(line, f.fail) {
				return []byte("Permission denied (you must be root)\nPerhaps the kernel is too old.\n"), errors.New("exit status 4")
			}
			return []byte(f.dump), nil
		},
	}
}

func TestRedirectOrder(t *testing.T) {
	f := fake{has: []string{"iptables-nft", "ip6tables-nft"}}
	p := f.program(NFT)
	p.Netns, p.CloseWait = "/run/netns/a", 60
	require.NoError(t, p.Redirect(t.Context(), worked()))
	require.Len(t, f.ran, 1+2*12)
	const enter = "nsenter --net=/run/netns/a -- "
	assert.Equal(t, enter+"sysctl -w net.netfilter.nf_conntrack_tcp_timeout_close_wait=60", f.ran[0])
	assert.Equal(t, enter+"iptables-nft-save -t nat", f.ran[1])
	assert.Equal(t, enter+"iptables-nft -t nat -N PROXY_INIT_REDIRECT", f.ran[2])
	assert.Equal(t, enter+"iptables-nft-save -t nat", f.ran[12])
	assert.Equal(t, enter+"ip6tables-nft-save -t nat", f.ran[13])
}

func TestRedirectFallbackBinary(t *testing.T) {
	for _, tt := range []struct {
		mode Mode
		has  []string
		want string
	}{
		{Legacy, []string{"iptables-legacy", "iptables-nft", "iptables"}, "iptables-legacy"},
		{Legacy, []string{"iptables-nft", "iptables"}, "iptables-nft"},
		{"", []string{"iptables"}, "iptables"},
		{NFT, []string{"iptables-legacy"}, "iptables-legacy"},
		{Plain, []string{"iptables", "iptables-nft"}, "iptables"},
	} {
		f := fake{has: tt.has}
		p := f.program(tt.mode)
		p.Families = []Family{IPv4}
		require.NoError(t, p.Redirect(t.Context(), worked()))
		assert.Equal(t, tt.want+"-save -t nat", f.ran[0])
	}
	f := fake{}
	assert.ErrorContains(t, f.program(NFT).Redirect(t.Context(), worked()), "install the package iptables")
	assert.ErrorContains(t, f.program(NFT).Cleanup(t.Context()), "install the package iptables")
}

func TestRedirectFailure(t *testing.T) {
	for _, fail := range []string{"-save", "--uid-owner", "sysctl"} {
		f := fake{has: []string{"iptables", "ip6tables"}, fail: fail}
		p := f.program(Plain)
		p.CloseWait = 1
		err := p.Redirect(t.Context(), worked())
		assert.ErrorContains(t, err, ": exit status 4: Permission denied (you must be root): Perhaps the kernel is too old.")
		assert.Contains(t, f.ran[len(f.ran)-1], fail)
	}
	f := fake{has: []string{"iptables"}}
	assert.ErrorIs(t, f.program(Plain).Redirect(t.Context(), Config{GID: -1}), ErrRoot)
	assert.Empty(t, f.ran, "nothing before all is known to be right")
}

func TestSimulate(t *testing.T) {
	f := fake{}
	p := f.program(NFT)
	var out strings.Builder
	p.Simulate, p.Out = true, &out
	require.NoError(t, p.Redirect(t.Context(), worked()))
	assert.Empty(t, f.ran)
	printed := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.Len(t, printed, 20)
	assert.Equal(t, "iptables-nft -t nat -N PROXY_INIT_REDIRECT", printed[0])
	assert.Equal(t, "ip6tables-nft -t nat -N PROXY_INIT_REDIRECT", printed[10])
}
