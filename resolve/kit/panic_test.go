package kit

import (
	"context"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/go-kit/kit/sd"
	"github.com/stretchr/testify/assert"
)

var lineNumber = regexp.MustCompile(`\.go:\d+:`)

// panicker is an Instancer with methods that panic.
type panicker struct{ register, deregister, stop bool }

func (p panicker) Register(chan<- sd.Event) {
	if p.register {
		panic("register")
	}
}

func (p panicker) Deregister(chan<- sd.Event) {
	if p.deregister {
		panic("deregister")
	}
}

func (p panicker) Stop() {
	if p.stop {
		panic("stop")
	}
}

// A panic of an Instancer or of newInstancer does not end the process.
func TestInstancerPanics(t *testing.T) {
	for name, tt := range map[string]struct {
		instancer sd.Instancer // nil: it is not made
		want      []string
	}{
		"make":       {nil, []string{`kit: "web": make an Instancer: panic at panic_test.go:N: make`, "end"}},
		"register":   {panicker{register: true}, []string{`kit: "web": register with an Instancer: panic at panic_test.go:N: register`, "end"}},
		"deregister": {panicker{deregister: true}, []string{"end"}},
		"stop":       {panicker{stop: true}, []string{"end"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				got := follow(ctx, New(func(string) (sd.Instancer, error) {
					if tt.instancer == nil {
						panic("make")
					}
					return tt.instancer, nil
				}), "web")
				synctest.Wait()
				cancel()
				synctest.Wait()
				for i, line := range *got {
					(*got)[i] = lineNumber.ReplaceAllString(line, ".go:N:")
				}
				assert.Equal(t, tt.want, *got)
			})
		})
	}
}
