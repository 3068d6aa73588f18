let sum = 0;
for (let i = 0; i < 5000; i++) sum += i * i;
console.log(sum);
process.exitCode = 3;
