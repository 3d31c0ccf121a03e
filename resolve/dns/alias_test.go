package dns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// own is a server that answers of its own zone, test., and asks nobody: where an
// alias leads elsewhere, it leaves its end to the one who asks. What it says of
// elsewhere, if it is asked for that, is elsewhere.
func own(elsewhere func(*dnsmessage.Message)) func(string, dnsmessage.Question) *reply {
	return func(_ string, q dnsmessage.Question) *reply {
		return &reply{before: func(m dnsmessage.Message) []dnsmessage.Message {
			m.RecursionAvailable, m.Authoritative, m.Authorities = false, true, nil
			if !strings.HasSuffix(q.Name.String(), ".test.") {
				elsewhere(&m)
				return []dnsmessage.Message{m}
			}
			var mine []dnsmessage.Resource
			for _, r := range m.Answers {
				if strings.HasSuffix(r.Header.Name.String(), ".test.") {
					mine = append(mine, r)
				}
			}
			m.Answers, m.RCode = mine, dnsmessage.RCodeSuccess
			return []dnsmessage.Message{m}
		}}
	}
}

// That a server does not say what is at the end of an alias is no word of that.
func TestTheEndOfAnAliasElsewhere(t *testing.T) {
	refuses := func(m *dnsmessage.Message) { m.RCode, m.Answers = dnsmessage.RCodeRefused, nil }
	knows := func(m *dnsmessage.Message) { m.RecursionAvailable = true }
	for name, tt := range map[string]struct {
		elsewhere func(*dnsmessage.Message)
		zone      []string
		want      string
		asked     []string // of A
	}{
		"refused": {
			refuses, []string{"web.test. 60 CNAME lb.org.", "lb.org. 60 A 10.0.0.1"},
			"its alias lb.org.: REFUSED", []string{"web.test.", "lb.org."},
		},
		"it does not say": {
			func(m *dnsmessage.Message) { m.Authoritative, m.Answers, m.RCode = false, nil, dnsmessage.RCodeSuccess },
			[]string{"web.test. 60 CNAME lb.org.", "lb.org. 60 A 10.0.0.1"},
			"its alias lb.org.: the server does not know the name", []string{"web.test.", "lb.org."},
		},
		"asked for, it knows": {
			knows, []string{"web.test. 60 CNAME b.test.", "b.test. 60 CNAME lb.org.", "lb.org. 60 A 10.0.0.1"},
			"replace 10.0.0.1:80", []string{"web.test.", "lb.org."},
		},
		"there is none": {
			knows, []string{"web.test. 60 CNAME lb.org."}, "does not exist", []string{"web.test.", "lb.org."},
		},
		"there is nothing": {
			knows, []string{"web.test. 60 CNAME lb.org.", "lb.org. 60 TXT x"}, "empty", []string{"web.test.", "lb.org."},
		},
		"it is at home": {
			refuses, []string{"web.test. 60 CNAME b.test.", "b.test. 60 A 10.0.0.1"}, "replace 10.0.0.1:80", []string{"web.test."},
		},
		"a circle": {
			func(m *dnsmessage.Message) {
				m.Answers, m.RCode = records("lb.org. 60 CNAME web.test."), dnsmessage.RCodeSuccess
			},
			[]string{"web.test. 60 CNAME lb.org."}, "more than 8 answers are aliases",
			strings.Fields(strings.Repeat("web.test. lb.org. ", 4)),
		},
	} {
		for _, family := range []Option{nil, WithIPv4Only()} {
			t.Run(fmt.Sprint(name, ", one family ", family != nil), func(t *testing.T) {
				s := &server{}
				s.put("all", tt.zone...)
				s.fail(own(tt.elsewhere))
				opts := []Option{WithServers(s.loopback(t)), patient(), WithAttempts(1)}
				if family != nil {
					opts = append(opts, family)
				}
				u, err := first(t.Context(), New(opts...), "web.test:80")
				if err != nil {
					require.ErrorContains(t, err, tt.want)
				} else {
					assert.Equal(t, tt.want, text(u))
				}
				var asked []string
				for _, q := range s.asked() {
					if name, ok := strings.CutPrefix(q, "udp A "); ok {
						asked = append(asked, name)
					}
				}
				if err == nil || family != nil { // what fails ends the other family's questions
					assert.Equal(t, tt.asked, asked)
				}
			})
		}
	}
}

// A server that has no address of the other family, and sends no SOA record for
// that, does not take away those that it has.
func TestAnAliasOfOneFamilyElsewhere(t *testing.T) {
	s := &server{}
	s.put("all", "web.test. 60 CNAME lb.org.", "lb.org. 60 A 10.0.0.1")
	s.fail(func(_ string, q dnsmessage.Question) *reply {
		if q.Name.String() != "web.test." {
			return nil
		}
		return &reply{before: func(m dnsmessage.Message) []dnsmessage.Message {
			m.RecursionAvailable, m.Authoritative = false, true
			return []dnsmessage.Message{m}
		}}
	})
	u, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithAttempts(1)), "web.test:80")
	require.NoError(t, err)
	assert.Equal(t, "replace 10.0.0.1:80", text(u))
	assert.ElementsMatch(t, []string{"udp A web.test.", "udp AAAA web.test.", "udp AAAA lb.org."}, s.asked())
}
