package dns

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// condition is one row of the comparison with net.Resolver. Its servers are 10.9.0.1, 10.9.0.2,
// 10.9.0.3, 10.9.0.4, fe80::9%lo, 127.0.0.1 and ::1.
type condition struct {
	conf  string // the content of resolv.conf; "" means one server, "none" no file, and "directory" a directory
	hosts string // the content of the hosts file; "" means no file
	ask   string // the name to resolve
	zone  []string
	// script returns the scripts of the servers by address. A server without a script answers right.
	// "refuses" as the key has the servers that are not there.
	script func() map[string]script
	want   string // the addresses, sorted
	net    string // those of net.Resolver, if they differ
	differ string // why they differ
	named  bool   // whether the name of this host, box.host.test, matters
}

const (
	single = "nameserver 10.9.0.1\n"
	double = "nameserver 10.9.0.1\nnameserver 10.9.0.2\n"
	short  = "options timeout:1 attempts:3\n" // for servers that do not answer
	domain = single + "search a.test b.test\n"
)

func pack(messages ...dnsmessage.Message) (packets [][]byte) {
	for _, m := range messages {
		packed, err := m.Pack()
		if err != nil {
			panic(err)
		}
		packets = append(packets, packed)
	}
	return packets
}

// one returns the scripts for the server 10.9.0.1.
func one(s script) func() map[string]script {
	return func() map[string]script { return map[string]script{"10.9.0.1": s} }
}

func refuses(addrs ...string) func() map[string]script {
	return func() map[string]script {
		scripts := map[string]script{}
		for _, addr := range addrs {
			scripts["refuses "+addr] = nil
		}
		return scripts
	}
}

// drops does not answer the questions in the list, such as "A web.test."; without a list, none.
func drops(questions ...string) script {
	return func(_ string, _, right dnsmessage.Message) [][]byte {
		if isListed(right, questions) {
			return nil
		}
		return pack(right)
	}
}

func isListed(m dnsmessage.Message, questions []string) bool {
	q := m.Questions[0]
	return len(questions) == 0 || slices.Contains(questions, kindName(q.Type)+" "+fold(q.Name))
}

// replies answers the questions in the list with an RCODE.
func replies(rcode dnsmessage.RCode, questions ...string) script {
	return func(_ string, _, right dnsmessage.Message) [][]byte {
		if isListed(right, questions) {
			right.RCode, right.Answers = rcode, nil
		}
		return pack(right)
	}
}

// edits changes the right answer.
func edits(edit func(m *dnsmessage.Message)) script {
	return func(_ string, _, right dnsmessage.Message) [][]byte {
		edit(&right)
		return pack(right)
	}
}

// after sends another message before the right answer.
func after(edit func(m *dnsmessage.Message)) script {
	return func(_ string, _, right dnsmessage.Message) [][]byte {
		wrong := right
		wrong.Questions = slices.Clone(right.Questions)
		wrong.Answers = records("web.test. 60 A 10.6.6.6")
		edit(&wrong)
		return pack(wrong, right)
	}
}

// firstOf applies a script to the first n questions only.
func firstOf(n int, s script) func() map[string]script {
	return func() map[string]script {
		count := 0
		return one(func(network string, query, right dnsmessage.Message) [][]byte {
			if count++; count > n {
				return pack(right)
			}
			return s(network, query, right)
		})()
	}
}

// truncates answers over UDP with no record and TC, and over TCP by the script s.
func truncates(s script) script {
	return func(network string, query, right dnsmessage.Message) [][]byte {
		if network == "udp" {
			right.Truncated, right.Answers = true, nil
			return pack(right)
		}
		return s(network, query, right)
	}
}

func rejectsEDNS(rcode dnsmessage.RCode) script {
	return func(_ string, query, right dnsmessage.Message) [][]byte {
		if len(query.Additionals) > 0 {
			right.RCode, right.Answers = rcode&15, nil
			if rcode > 15 {
				var opt dnsmessage.ResourceHeader
				if err := opt.SetEDNS0(payload, rcode, false); err != nil {
					panic(err)
				}
				right.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}}
			}
		}
		return pack(right)
	}
}

func echoesOPT(_ string, query, right dnsmessage.Message) [][]byte {
	right.Additionals = query.Additionals
	return pack(right)
}

func many(n int) (lines, addrs []string) {
	for i := range n {
		addr := fmt.Sprintf("10.1.%d.%d", i/256, i%256)
		lines, addrs = append(lines, "web.test. 60 A "+addr), append(addrs, addr)
	}
	slices.Sort(addrs)
	return lines, addrs
}

func conditions() map[string]condition {
	both := []string{"web.test. 60 A 10.0.0.1", "web.test. 60 AAAA fd00::1"}
	four := []string{"web.test. 60 A 10.0.0.1", soa}
	six := []string{"web.test. 60 AAAA fd00::1", soa}
	inA := []string{"web.a.test. 60 A 10.0.0.1", soa}
	inB := []string{"web.b.test. 60 A 10.0.0.2", soa}
	const a1, b2, v6 = "10.0.0.1", "10.0.0.2", "fd00::1"
	const servfail, notimp, refused = dnsmessage.RCodeServerFailure, dnsmessage.RCodeNotImplemented, dnsmessage.RCodeRefused
	const formerr, nxdomain = dnsmessage.RCodeFormatError, dnsmessage.RCodeNameError
	hundred, hundredAddrs := many(100)
	hosts := "# names\n10.0.0.1\tweb.test  www.test alias # first\nfd00::1 web.test\n10.0.0.3 Upper.Test. single\n" +
		"not-an-address bad.test\n10.0.0.4\nfe80::1%lo zone.test\n  10.0.0.5 blank.test\r\n0.0.0.0 blocked.test\n10.0.0.6 b\u00fccher.test a_b\n"

	all := map[string]condition{
		// Families.
		"both families":           {ask: "web.test.", zone: both, want: a1 + " " + v6},
		"A only":                  {ask: "web.test.", zone: four, want: a1},
		"AAAA only":               {ask: "web.test.", zone: six, want: v6},
		"AAAA is NXDOMAIN":        {ask: "web.test.", zone: both, script: one(replies(nxdomain, "AAAA web.test.")), want: a1},
		"A is NXDOMAIN":           {ask: "web.test.", zone: both, script: one(replies(nxdomain, "A web.test.")), want: v6},
		"AAAA is SERVFAIL":        {ask: "web.test.", zone: both, script: one(replies(servfail, "AAAA web.test.")), want: a1},
		"AAAA is NOTIMP":          {ask: "web.test.", zone: both, script: one(replies(notimp, "AAAA web.test.")), want: a1},
		"AAAA is REFUSED":         {ask: "web.test.", zone: both, script: one(replies(refused, "AAAA web.test.")), want: a1},
		"AAAA is FORMERR":         {ask: "web.test.", zone: both, script: one(replies(formerr, "AAAA web.test.")), want: a1},
		"AAAA is RCODE 9":         {ask: "web.test.", zone: both, script: one(replies(9, "AAAA web.test.")), want: a1},
		"AAAA is dropped":         {conf: single + short, ask: "web.test.", zone: both, script: one(drops("AAAA web.test.")), want: a1},
		"A is SERVFAIL":           {ask: "web.test.", zone: both, script: one(replies(servfail, "A web.test.")), want: v6},
		"A is NOTIMP":             {ask: "web.test.", zone: both, script: one(replies(notimp, "A web.test.")), want: v6},
		"A is REFUSED":            {ask: "web.test.", zone: both, script: one(replies(refused, "A web.test.")), want: v6},
		"A is dropped":            {conf: single + short, ask: "web.test.", zone: both, script: one(drops("A web.test.")), want: v6},
		"both are SERVFAIL":       {ask: "web.test.", zone: both, script: one(replies(servfail))},
		"both are dropped":        {conf: single + short, ask: "web.test.", zone: both, script: one(drops())},
		"A NODATA, AAAA SERVFAIL": {ask: "web.test.", zone: six, script: one(replies(servfail, "AAAA web.test."))},
		"A question, both families": {ask: "web.test.", zone: four, script: one(edits(func(m *dnsmessage.Message) {
			if len(m.Answers) > 0 {
				m.Answers = append(m.Answers, records("web.test. 60 AAAA fd00::1")...)
			}
		})), want: a1 + " " + v6},

		// Answers.
		"NXDOMAIN":                 {ask: "none.test.", zone: four},
		"NODATA":                   {ask: "web.test.", zone: []string{"web.test. 60 TXT x", soa}},
		"SERVFAIL, then good":      {ask: "web.test.", zone: both, script: firstOf(2, replies(servfail)), want: a1 + " " + v6},
		"lost, then good":          {conf: single + short, ask: "web.test.", zone: both, script: firstOf(2, drops()), want: a1 + " " + v6},
		"CNAMEs":                   {ask: "web.test.", zone: []string{"web.test. 60 CNAME b.test.", "b.test. 60 CNAME c.test.", "c.test. 60 A 10.0.0.1"}, want: a1},
		"CNAMEs, reversed":         {ask: "web.test.", zone: []string{"web.test. 60 CNAME b.test.", "b.test. 60 A 10.0.0.1"}, script: one(edits(func(m *dnsmessage.Message) { slices.Reverse(m.Answers) })), want: a1},
		"CNAME without an address": {ask: "web.test.", zone: []string{"web.test. 60 CNAME b.test.", "b.test. 60 TXT x", soa}},
		"CNAMEs in a circle": {ask: "web.test.", zone: four, script: one(edits(func(m *dnsmessage.Message) {
			m.Answers = append(records("web.test. 60 CNAME b.test.", "b.test. 60 CNAME web.test."), m.Answers...)
		})), want: a1},
		"another owner": {ask: "web.test.", zone: four, script: one(edits(func(m *dnsmessage.Message) {
			if len(m.Answers) > 0 {
				m.Answers = records("books.test. 60 A 10.0.0.1")
			}
		})), want: a1},
		"another class": {ask: "web.test.", zone: four, script: one(edits(func(m *dnsmessage.Message) {
			for i := range m.Answers {
				m.Answers[i].Header.Class = dnsmessage.ClassCHAOS
			}
		})), want: a1},
		"another opcode": {ask: "web.test.", zone: four, script: one(edits(func(m *dnsmessage.Message) { m.OpCode = 2 })), want: a1},
		"upper case": {ask: "web.test.", zone: four, script: one(edits(func(m *dnsmessage.Message) {
			m.Questions[0].Name = dnsmessage.MustNewName("WeB.TEST.")
			for i := range m.Answers {
				m.Answers[i].Header.Name = dnsmessage.MustNewName("wEb.Test.")
			}
		})), want: a1},
		"asked in upper case":  {ask: "WEB.Test.", zone: four, want: a1},
		"a wrong id":           {ask: "web.test.", zone: four, script: one(after(func(m *dnsmessage.Message) { m.ID++ })), want: a1},
		"a wrong question":     {ask: "web.test.", zone: four, script: one(after(func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("x.") })), want: a1},
		"a wrong type":         {ask: "web.test.", zone: four, script: one(after(func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeTXT })), want: a1},
		"no answer, a message": {ask: "web.test.", zone: four, script: one(after(func(m *dnsmessage.Message) { m.Response = false })), want: a1},
		"garbage": {ask: "web.test.", zone: four, script: one(func(network string, _, right dnsmessage.Message) [][]byte {
			return append([][]byte{[]byte("x"), []byte("garbage of more than twelve bytes"), {}}, pack(right)...)
		}), want: a1},
		"TTL 0":               {ask: "web.test.", zone: []string{"web.test. 0 A 10.0.0.1", soa}, want: a1},
		"an address twice":    {ask: "web.test.", zone: []string{"web.test. 9 A 10.0.0.1", "web.test. 9 A 10.0.0.1", soa}, want: a1},
		"an address in IPv6":  {ask: "web.test.", zone: []string{"web.test. 9 AAAA ::ffff:10.0.0.1", soa}, want: a1},
		"additional cut":      {ask: "web.test.", zone: four, script: one(cutsAdditional), want: a1},
		"answers cut":         {ask: "web.test.", zone: four, script: one(cutsAnswers), want: a1},
		"OPT in the answer":   {ask: "web.test.", zone: four, script: one(echoesOPT), want: a1},
		"EDNS0 is FORMERR":    {ask: "web.test.", zone: four, script: one(rejectsEDNS(formerr)), want: a1, differ: "asks again without EDNS0"},
		"EDNS0 is NOTIMP":     {ask: "web.test.", zone: four, script: one(rejectsEDNS(notimp)), want: a1, differ: "asks again without EDNS0"},
		"EDNS0 is BADVERS":    {ask: "web.test.", zone: four, script: one(rejectsEDNS(16)), want: a1, differ: "asks again without EDNS0"},
		"blocked":             {ask: "web.test.", zone: []string{"web.test. 60 A 0.0.0.0", soa}, net: "0.0.0.0", differ: "a blocked name must not be a connection to this host"},
		"authoritative only":  {ask: "web.test.", zone: four, script: one(edits(func(m *dnsmessage.Message) { m.RecursionAvailable, m.Authoritative = false, true })), want: a1},
		"neither, with data":  {ask: "web.test.", zone: both, script: one(edits(func(m *dnsmessage.Message) { m.RecursionAvailable = false })), want: a1 + " " + v6},
		"truncated":           {ask: "web.test.", zone: four, script: one(truncates(edits(func(*dnsmessage.Message) {}))), want: a1},
		"truncated over TCP":  {ask: "web.test.", zone: four, script: one(truncates(edits(func(m *dnsmessage.Message) { m.Truncated = true }))), want: a1},
		"another id over TCP": {ask: "web.test.", zone: four, script: one(truncates(edits(func(m *dnsmessage.Message) { m.ID++ })))},
		"no TCP, second server": {conf: double, ask: "web.test.", zone: four, script: func() map[string]script {
			return map[string]script{"10.9.0.1": truncates(nil), "refuses tcp 10.9.0.1": nil}
		}, want: a1},
		"100 addresses": {ask: "web.test.", zone: hundred, script: one(truncates(edits(func(*dnsmessage.Message) {}))), want: strings.Join(hundredAddrs, " ")},

		// Servers.
		"first server refuses":      {conf: double, ask: "web.test.", zone: four, script: refuses("10.9.0.1"), want: a1},
		"first server drops":        {conf: double + short, ask: "web.test.", zone: four, script: one(drops()), want: a1},
		"first server SERVFAIL":     {conf: double, ask: "web.test.", zone: four, script: one(replies(servfail)), want: a1},
		"first server REFUSED":      {conf: double, ask: "web.test.", zone: four, script: one(replies(refused)), want: a1},
		"first server NXDOMAIN":     {conf: double, ask: "web.test.", zone: four, script: one(replies(nxdomain))},
		"first server is lame":      {conf: double, ask: "web.test.", zone: four, script: one(edits(func(m *dnsmessage.Message) { m.RecursionAvailable, m.Answers, m.Authorities = false, nil, nil })), want: a1},
		"two servers refuse":        {conf: double + "nameserver 10.9.0.3\n", ask: "web.test.", zone: four, script: refuses("10.9.0.1", "10.9.0.2"), want: a1},
		"three of four refuse":      {conf: double + "nameserver 10.9.0.3\nnameserver 10.9.0.4\n", ask: "web.test.", zone: four, script: refuses("10.9.0.1", "10.9.0.2", "10.9.0.3")},
		"all servers refuse":        {conf: double, ask: "web.test.", zone: four, script: refuses("10.9.0.1", "10.9.0.2")},
		"a server in a zone":        {conf: "nameserver fe80::9%lo\n", ask: "web.test.", zone: four, want: a1},
		"use-vc, no UDP":            {conf: single + "options use-vc\n", ask: "web.test.", zone: four, script: refuses("udp 10.9.0.1"), want: a1},
		"rotate, one server drops":  {conf: double + short + "options rotate\n", ask: "web.test.", zone: four, script: one(drops()), want: a1},
		"single-request":            {conf: single + "options single-request\n", ask: "web.test.", zone: both, want: a1 + " " + v6},
		"single-request, A dropped": {conf: single + short + "options single-request\n", ask: "web.test.", zone: both, script: one(drops("A web.test.")), want: v6},

		// resolv.conf.
		"no file":                     {conf: "none", ask: "web.test.", zone: four, want: a1},
		"no file, IPv6":               {conf: "none", ask: "web.test.", zone: four, script: refuses("127.0.0.1"), want: a1},
		"a directory":                 {conf: "directory", ask: "web.test.", zone: four, want: a1},
		"an empty file":               {conf: "\n", ask: "web.test.", zone: four, want: a1},
		"comments, blanks, tabs":      {conf: "; a\n# b\n \t\n\tnameserver\t10.9.0.1 \t # c\n  search  a.test\t\n", ask: "web", zone: inA, want: a1},
		"CRLF":                        {conf: "nameserver 10.9.0.1\r\nsearch a.test\r\noptions ndots:1\r\n", ask: "web", zone: inA, want: a1},
		"unknown lines":               {conf: "sortlist 10.0.0.0\nx\nfamily inet4\n" + domain + "options x y:2 trust-ad edns0 no-tld-query no-aaaa\n", ask: "web", zone: inA, want: a1},
		"options without numbers":     {conf: domain + "options ndots timeout: attempts:x ndots:-1\n", ask: "web", zone: inA, script: one(replies(nxdomain, "A web.", "AAAA web.")), want: a1},
		"options with units":          {conf: domain + "options timeout:3s attempts:2x ndots:1.5\n", ask: "web", zone: inA, want: a1},
		"large numbers":               {conf: domain + "options ndots:99 timeout:99999999999 attempts:3\n", ask: "web", zone: inA, want: a1},
		"timeout:0 attempts:0":        {conf: domain + "options timeout:0 attempts:0\n", ask: "web", zone: inA, want: a1},
		"options in several lines":    {conf: domain + "options ndots:3\noptions timeout:9\noptions attempts:2\n", ask: "web.test", zone: []string{"web.test. 9 A 10.0.0.2", "web.test.a.test. 9 A 10.0.0.1"}, want: a1},
		"nameserver that is a name":   {conf: "nameserver ns.test\n" + "nameserver\n" + "nameserver 10.9.0.1:53\nnameserver 10.9.0.1#53\n" + single, ask: "web.test.", zone: four, want: a1},
		"no valid nameserver":         {conf: "nameserver ns.test\n", ask: "web.test.", zone: four, want: a1},
		"domain":                      {conf: single + "domain a.test b.test\n", ask: "web", zone: inA, want: a1},
		"domain after search":         {conf: single + "search b.test\ndomain a.test\n", ask: "web", zone: append(inA, inB...), want: a1},
		"search after domain":         {conf: single + "domain a.test\nsearch b.test\n", ask: "web", zone: append(inA, inB...), want: b2},
		"search .":                    {conf: single + "search .\n", ask: "web", zone: []string{"web. 60 A 10.0.0.1", soa}, want: a1},
		"search with a final dot":     {conf: single + "search a.test.\n", ask: "web", zone: inA, want: a1},
		"search, an invalid domain":   {conf: single + "search x..y b.test\n", ask: "web", zone: inB, want: b2},
		"search with a comment":       {conf: single + "search a.test # b.test\n", ask: "web", zone: inB, want: b2},
		"search, a long domain":       {conf: single + "search " + strings.Repeat("x.", 125) + " a.test\n", ask: "web", zone: inA, want: a1},
		"domain of this host":         {conf: single, ask: "web", zone: []string{"web.host.test. 60 A 10.0.0.1", soa}, want: a1, named: true},
		"search: first is SERVFAIL":   {conf: domain, ask: "web", zone: inB, script: one(replies(servfail, "A web.a.test.", "AAAA web.a.test.")), want: b2},
		"search: first is REFUSED":    {conf: domain, ask: "web", zone: inB, script: one(replies(refused, "A web.a.test.", "AAAA web.a.test.")), want: b2},
		"search: first is dropped":    {conf: domain + short, ask: "web", zone: inB, script: one(drops("A web.a.test.", "AAAA web.a.test.")), want: b2},
		"search: A of first fails":    {conf: domain, ask: "web", zone: inB, script: one(replies(servfail, "A web.a.test.")), want: b2},
		"search: AAAA of found fails": {conf: domain, ask: "web", zone: inA, script: one(replies(servfail, "AAAA web.a.test.")), want: a1},
		"search: name itself fails":   {conf: domain, ask: "web.x", zone: []string{"web.x.b.test. 9 A 10.0.0.2", soa}, script: one(replies(servfail, "A web.x.", "AAAA web.x.")), want: b2},
		"search: NODATA, then found":  {conf: domain, ask: "web", zone: append([]string{"web.a.test. 60 TXT x"}, inB...), want: b2},
		"search: found last":          {conf: domain, ask: "web", zone: []string{"web. 60 A 10.0.0.1", soa}, want: a1},
		"search: final dot":           {conf: domain, ask: "web.", zone: inA},
		"search: all fail":            {conf: domain, ask: "web", zone: inA, script: one(replies(servfail))},
		"ndots:0":                     {conf: domain + "options ndots:0\n", ask: "web", zone: append([]string{"web. 60 A 10.0.0.2"}, inA...), want: b2},
		"ndots:15":                    {conf: domain + "options ndots:15\n", ask: "web.test", zone: []string{"web.test. 9 A 10.0.0.2", "web.test.a.test. 9 A 10.0.0.1"}, want: a1},
		"enough dots":                 {conf: domain, ask: "web.test", zone: []string{"web.test. 9 A 10.0.0.2", "web.test.a.test. 9 A 10.0.0.1"}, want: b2},
		"enough dots, in the list":    {conf: domain, ask: "web.x", zone: []string{"web.x.a.test. 9 A 10.0.0.1", soa}, want: a1},

		// The hosts file.
		"hosts":                    {hosts: hosts, ask: "web.test", zone: []string{"web.test. 9 A 10.0.0.9"}, want: a1 + " " + v6},
		"hosts: alias":             {hosts: hosts, ask: "alias", want: a1},
		"hosts: alias with a dot":  {hosts: hosts, ask: "www.test.", want: a1},
		"hosts: case":              {hosts: hosts, ask: "UPPER.test", want: "10.0.0.3"},
		"hosts: zone":              {hosts: hosts, ask: "zone.test", want: "fe80::1%lo"},
		"hosts: blank, CR":         {hosts: hosts, ask: "blank.test", want: "10.0.0.5"},
		"hosts: an invalid line":   {hosts: hosts, ask: "bad.test", zone: []string{"bad.test. 9 A 10.0.0.9", soa}, want: "10.0.0.9"},
		"hosts: one label and dot": {hosts: hosts, ask: "single.", zone: []string{"single. 9 A 10.0.0.9", soa}, want: "10.0.0.9"},
		"hosts: one label":         {hosts: hosts, ask: "single", zone: []string{"single. 9 A 10.0.0.9", soa}, want: "10.0.0.3"},
		"hosts: without servers":   {hosts: hosts, ask: "alias", script: refuses("10.9.0.1"), want: a1},
		"hosts: underscore":        {hosts: hosts, ask: "a_b", want: "10.0.0.6"},
		"hosts: beyond ASCII":      {hosts: hosts, ask: "bücher.test", want: "10.0.0.6"},
		"hosts: blocked":           {hosts: hosts, ask: "blocked.test", net: "0.0.0.0", differ: "a blocked name must not be a connection to this host"},
		"hosts: localhost":         {hosts: "10.0.0.7 localhost\n", ask: "localhost", want: "10.0.0.7"},
		"localhost, no file":       {ask: "localhost", zone: four, want: "127.0.0.1 ::1", differ: "RFC 6761: no server is asked for localhost"},

		// Names.
		"an underscore":     {ask: "a_b.test.", zone: []string{"a_b.test. 9 A 10.0.0.1", soa}, want: a1},
		"labels with _":     {ask: "_x.y.test.", zone: []string{"_x.y.test. 9 A 10.0.0.1", soa}, want: a1},
		"a local name":      {ask: "web.local", zone: []string{"web.local. 9 A 10.0.0.1", soa}, want: a1},
		".onion":            {ask: "web.onion", zone: []string{"web.onion. 9 A 10.0.0.1", soa}},
		"a long label":      {ask: strings.Repeat("a", 64) + ".test", zone: four},
		"an empty label":    {ask: "a..test", zone: four},
		"a long name":       {ask: strings.Repeat("a.", 127) + "test", zone: four},
		"a blank":           {ask: "a b.test.", zone: four},
		"numbers":           {ask: "1.2.3.", zone: []string{"1.2.3. 9 A 10.0.0.1", soa}, want: a1, differ: "DNS has such names"},
		"a leading hyphen":  {ask: "-a.test.", zone: []string{"-a.test. 9 A 10.0.0.1", soa}, want: a1, differ: "DNS has such names"},
		"beyond ASCII":      {ask: "bücher.test.", zone: []string{"xn--bcher-kva.test. 9 A 10.0.0.1", soa}, want: a1, differ: "as net/http, which converts the name"},
		"IPv4":              {ask: "10.0.0.1", want: a1},
		"IPv6":              {ask: "fd00::1", want: v6},
		"IPv6 with a zone":  {ask: "fe80::1%lo", want: "fe80::1%lo"},
		"IPv4 in IPv6":      {ask: "::ffff:10.0.0.1", want: a1},
		"unspecified":       {ask: "0.0.0.0", want: "0.0.0.0"},
		"IPv4, a short one": {ask: "127.1", zone: four},
	}
	big, bigAddrs := many(300)
	all["300 addresses over UDP"] = condition{
		ask: "web.test.", zone: big, script: one(edits(func(*dnsmessage.Message) {})), want: strings.Join(bigAddrs, " "),
		net: "*", differ: "net.Resolver uses the first 1232 bytes",
	}
	return all
}

// cutsAdditional announces a record that is not in the message.
func cutsAdditional(_ string, _, right dnsmessage.Message) [][]byte {
	packets := pack(right)
	packets[0][11]++
	return packets
}

// cutsAnswers announces an answer more than the message has.
func cutsAnswers(_ string, _, right dnsmessage.Message) [][]byte {
	authorities := right.Authorities
	right.Authorities = nil
	if len(right.Answers) == 0 {
		right.Authorities = authorities
		return pack(right)
	}
	packets := pack(right)
	packets[0][7]++
	return packets
}
