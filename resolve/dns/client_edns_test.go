package dns

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// A server older than EDNS0 says so in one of these ways: RFC 6891, section 7.
func TestServersThatDoNotKnowEDNS(t *testing.T) {
	for name, says := range map[string]func(*dnsmessage.Message){
		"FORMERR": func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeFormatError },
		"NOTIMP":  func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeNotImplemented },
		"FORMERR without the question": func(m *dnsmessage.Message) {
			m.RCode, m.Questions = dnsmessage.RCodeFormatError, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{noEDNS: says}
			s.put("web", "web.test. 60 A 10.0.0.1")
			u, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithIPv4Only(), WithAttempts(1)), "web.test:80")
			require.NoError(t, err)
			assert.Equal(t, "replace 10.0.0.1:80", text(u))
			assert.Equal(t, []string{"udp A web.test.", "udp A web.test."}, s.asked())
		})
	}
}

// One that knows it means what it says; so does one that says it without.
func TestRefusalsThatAreNotOfEDNS(t *testing.T) {
	var opt dnsmessage.ResourceHeader
	require.NoError(t, opt.SetEDNS0(payload, dnsmessage.RCodeSuccess, false))
	for name, tt := range map[string]struct {
		says  func(*dnsmessage.Message)
		fault func(string, dnsmessage.Question) *reply
		asked int
	}{
		"it knows": {asked: 1, says: func(m *dnsmessage.Message) {
			m.RCode = dnsmessage.RCodeFormatError
			m.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}}
		}},
		"again and again": {asked: 2, fault: always(reply{rcode: dnsmessage.RCodeFormatError})},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{noEDNS: tt.says, fault: tt.fault}
			_, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithIPv4Only(), WithAttempts(1)), "web.test:80")
			require.ErrorContains(t, err, "FORMERR")
			assert.Len(t, s.asked(), tt.asked)
		})
	}
}
