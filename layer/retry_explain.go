package layer

// explain tells whoever asked why the request is tried again, or how often it
// was and why it is not again.
func (s *retrying[Req, Rsp]) explain(got answer[Rsp], why skip, again bool) {
	to := s.ctx.hints.Explanation
	if to == nil {
		return
	}
	n := Node{Name: "retry"}
	if s.target != "" {
		n.State = append(n.State, Attr{"target", s.target})
	}
	if again {
		n.State = append(n.State, Attr{"try", s.tries + 1}, Attr{"because", s.because(got)})
	} else {
		n.State = append(n.State, Attr{"tries", s.tries})
		if why != skipNothing {
			n.State = append(n.State, Attr{"failed", s.because(got)}, Attr{"skipped", why.String()})
		}
	}
	n.State = append(n.State, Attr{"budget", s.policy.Budget.Balance()})
	to.Add(n)
}

// because says what is wrong with the outcome of a try.
func (s *retrying[Req, Rsp]) because(got answer[Rsp]) string {
	if got.err != nil {
		return got.err.Error()
	}
	class := s.classify(got.outcome()).String()
	if say, ok := s.resend.(interface{ Outline(rsp Rsp) string }); ok {
		return class + ": " + say.Outline(got.rsp)
	}
	return class
}
