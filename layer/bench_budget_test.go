package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkBudgetDeposit(b *testing.B) {
	budget := layer.NewBudget(0, 0, 0)
	b.ReportAllocs()
	for b.Loop() {
		budget.Deposit()
	}
}

func BenchmarkBudgetDepositParallel(b *testing.B) {
	budget := layer.NewBudget(0, 0, 0)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			budget.Deposit()
		}
	})
}

func BenchmarkBudgetWithdraw(b *testing.B) {
	budget := layer.NewBudget(0, 1, 0)
	b.ReportAllocs()
	for b.Loop() {
		budget.Deposit()
		budget.Withdraw()
	}
}
