local sum = 0
for i = 1, 200 do sum = sum + i * i end
print(sum)
os.exit(3)
