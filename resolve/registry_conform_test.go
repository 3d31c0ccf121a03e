package resolve_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
)

func TestRegistryConforms(t *testing.T) {
	const scheme = "script://"
	resolvetest.Run(t, resolvetest.Subject{
		Targets: [2]string{scheme + "web:80", "Script://books:80"},
		New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
			var s script
			g := resolve.NewRegistry()
			require.NoError(t, g.Register("script", s.lasting()))
			rest := func(target string) string { return target[len(scheme):] }
			src := s.source()
			return g, resolvetest.Source{
				Set:          func(target string, endpoints ...resolve.Endpoint) { src.Set(rest(target), endpoints...) },
				Empty:        func(target string) { src.Empty(rest(target)) },
				DoesNotExist: func(target string) { src.DoesNotExist(rest(target)) },
				Send:         func(target string, u resolve.Update) { src.Send(rest(target), u) },
				Interrupt:    func(target string, meanwhile func()) { src.Interrupt(rest(target), meanwhile) },
				Reject:       func(target string) { src.Reject(strings.TrimPrefix(target, scheme)) },
			}
		},
	})
}
